// A run of several ranks in one process: a thread a rank, each with a store, an engine and a state of known values.
#pragma once

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "base/size.h"
#include "engine/engine.h"
#include "train/committed_state.h"
#include "train/reshard.h"
#include "train/resume.h"
#include "train/store_group.h"
#include "train/temp_folder.h"

namespace transload::testing {

/// What a rank meets when another one has ended.
class LostRank : public Error {
 public:
  LostRank() : Error("a rank is lost") {}
};

/// Runs a function on as many threads as there are ranks.
class World {
 public:
  explicit World(std::uint32_t ranks) : ranks_(ranks) {}

  /// By rank, what it threw; null where it ended well.
  std::vector<std::exception_ptr> run(const std::function<void(Peers&)>& rank_main) {
    std::vector<std::exception_ptr> errors(ranks_);
    std::vector<std::thread> threads;
    for (std::uint32_t r = 0; r < ranks_; ++r)
      threads.emplace_back([&, r] {
        Rank rank(*this, r);
        try {
          rank_main(rank);
        } catch (...) {
          errors[r] = std::current_exception();
        }
        leave();
      });
    for (std::thread& thread : threads) thread.join();
    return errors;
  }
  /// The same, where all must end well.
  void run_well(const std::function<void(Peers&)>& rank_main) {
    for (const std::exception_ptr& error : run(rank_main))
      if (error) std::rethrow_exception(error);
  }

 private:
  class Rank final : public Peers {
   public:
    Rank(World& world, std::uint32_t rank) : world_(world), rank_(rank) {}
    std::uint32_t rank() const override { return rank_; }
    std::uint32_t count() const override { return world_.ranks_; }
    std::uint32_t local_rank() const override { return 0; }  // a run folder each, or one for all
    std::vector<std::string> exchange(const std::string& mine) override {
      TRANSLOAD_CHECK(mine.size() <= 64 * KiB, "{} bytes", mine.size());
      return world_.all_gather(rank_, "exchange", mine);
    }
    void broadcast(std::span<std::byte> data, std::uint32_t from) override {
      const auto* bytes = reinterpret_cast<const char*>(data.data());
      const std::string mine = rank_ == from ? std::string(bytes, data.size()) : std::string();
      const std::string call = fmt::format("broadcast of {} bytes from {}", data.size(), from);
      const std::vector<std::string> all = world_.all_gather(rank_, call, mine);
      std::memcpy(data.data(), all[from].data(), data.size());
    }

   private:
    World& world_;
    std::uint32_t rank_;
  };

  /// `call` says what is called: all ranks have to call the same.
  std::vector<std::string> all_gather(std::uint32_t rank, const std::string& call, const std::string& mine) {
    std::unique_lock lock(mutex_);
    if (lost_) throw LostRank();
    texts_.resize(ranks_);
    TRANSLOAD_CHECK(here_ == 0 || call == call_, "rank {}: {}; another one: {}", rank, call, call_);
    call_ = call;
    texts_[rank] = mine;
    const std::uint64_t round = round_;
    if (++here_ == ranks_) {
      here_ = 0;
      ++round_;
      result_ = std::move(texts_);
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round || lost_; });
    if (round_ == round) throw LostRank();
    return result_;
  }
  /// Whoever waits for this rank waits in vain.
  void leave() {
    const std::lock_guard lock(mutex_);
    lost_ = true;
    changed_.notify_all();
  }

  const std::uint32_t ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> texts_, result_;
  std::string call_;
  std::uint32_t here_ = 0;
  std::uint64_t round_ = 0;
  bool lost_ = false;
};

/// A model without computation: odd sizes, fewer elements than ranks, one frozen parameter, one without elements.
inline std::vector<ParamSpec> odd_params() {
  return {{"one", {1}},    {"wide", {3, 700}},   {"frozen.w", {5, 411}, true}, {"none", {0, 4}},
          {"bias", {3}},   {"large", {17, 300}}, {"frozen.b", {2}, true},      {"two", {2, 1}},
          {"last", {1025}}};
}

struct Shape {
  std::uint32_t ranks = 1;
  std::uint64_t chunk_bytes = 4 * KiB;
  Dtype dtype = Dtype::bf16;
};
inline Layout layout_of(const Shape& shape, std::uint32_t rank) {
  return Layout(odd_params(), training_planes(shape.dtype, shape.dtype, false, shape.ranks > 1), shape.chunk_bytes,
                {rank, shape.ranks});
}

/// A value that depends on step, array, parameter and element alone.
inline float value_of(std::uint64_t step, int array, std::size_t param, std::uint64_t element) {
  const std::uint64_t mixed = ((element * 3 + static_cast<std::uint64_t>(array)) * 0x9E3779B97F4A7C15u + param) *
                              (2 * step + 0x632BE59BD9B4E019u);
  return std::ldexp(static_cast<float>(static_cast<std::int32_t>(mixed >> 32)), -34);
}

inline CheckpointMeta meta_of(const Layout& layout, Dtype dtype, std::uint64_t step, const std::string& run_id,
                              std::uint64_t group) {
  CheckpointMeta meta;
  meta.step = meta.steps_seen = step;
  meta.model_json = to_hf_config(read_model_config(TRANSLOAD_SOURCE_DIR "/tests/reference/llama/config.json"), dtype);
  meta.dtype = meta.gradients = dtype;
  meta.layout_json = layout.to_json();
  for (std::size_t p = 0; p < layout.params().size(); ++p) meta.step_counts.push_back(step + p);
  meta.run_id = run_id;
  meta.group = group;
  return meta;
}

/// What a rank of a training run has, without the training.
class RankState {
 public:
  RankState(const Shape& shape, std::uint32_t rank) : shape_(shape), layout_(testing::layout_of(shape, rank)) {}

  const Layout& layout() const { return layout_; }
  Store& store() { return *store_; }
  Engine& engine() { return *engine_; }
  Stream& stream() { return stream_; }

  void create(const std::string& folder) {
    StoreOptions options;
    options.folder = folder;
    options.io = IoPath::threads;
    store_ = Store::create(options, slots(), {});
    make_engine();
  }
  void open(const std::string& folder, std::optional<std::uint64_t> wanted) {
    StoreOptions options;
    options.folder = folder;
    options.io = IoPath::threads;
    options.wanted = wanted;
    store_ = Store::open(options, slots(), {});
    make_engine();
    engine_->adopt(stored_blocks(store_->committed(), layout_, layout_.blocks().size()));
  }
  /// The values of a step in all durable blocks; moments of step 0 are zeros that nobody wrote.
  void fill(std::uint64_t step) {
    for (std::size_t b = 0; b < layout_.blocks().size(); ++b) {
      const BlockSpec& spec = layout_.blocks()[b];
      if (!spec.durable) continue;
      const int array = spec.plane == "moment1" ? 1 : spec.plane == "moment2" ? 2 : 0;
      if (step == 0 && array > 0)
        engine_->set_zero(BlockId(b));
      else
        fill_block(BlockId(b), step, array);
    }
  }
  void commit(WorldCommit& commits, const std::string& run_id, std::uint64_t group, std::uint64_t step) {
    engine_->commit(to_json(meta_of(layout_, shape_.dtype, step, run_id, group)), commits.of(*store_, step));
  }

 private:
  std::vector<SlotClass> slots() const {
    std::vector<SlotClass> classes;
    for (const BlockSpec& block : layout_.blocks())
      if (block.durable) classes.push_back({block.bytes, 2});
    return classes;
  }
  void make_engine() {
    engine_ = std::make_unique<Engine>(
        layout_.blocks(), EngineOptions{.host_bytes = 128 * KiB, .frame_bytes = 4096, .populate = false}, store_.get());
  }
  void fill_block(BlockId block, std::uint64_t step, int array) {
    Pin pin = engine_->pin(block, Tier::host, AccessKind::write);
    pin.ready.wait();
    pin.view.zero(0, pin.view.bytes());
    for (const Piece& piece : layout_.shard_pieces(layout_.chunk_of(block)))
      for (std::uint64_t i = 0; i < piece.count; ++i) {
        const float value = value_of(step, array, piece.param.value, piece.param_begin + i);
        const SplitMaster split = split_master(value);
        const std::uint64_t at = piece.chunk_begin + i;
        if (array != 0 || shape_.dtype == Dtype::f32)
          pin.view.copy_in(&value, 4 * at, 4 * at + 4);
        else if (layout_.blocks()[block.value].plane == "weight")
          pin.view.copy_in(&split.weight, 2 * at, 2 * at + 2);
        else
          pin.view.copy_in(&split.residue, 2 * at, 2 * at + 2);
      }
    engine_->unpin(std::move(pin), stream_);
  }

  const Shape shape_;
  const Layout layout_;
  std::unique_ptr<Store> store_;
  InlineStream stream_;
  std::unique_ptr<Engine> engine_;
};

/// Goes on with a run, or begins it, as a trainer does; then calls `then` with what it has.
using Then = std::function<void(RankState&, WorldCommit&, const std::string& run_id, std::uint64_t group)>;
inline void go_on(const StorePlaces& places, const Shape& shape, Peers& peers, const Then& then = {},
                  std::uint64_t first_step = 1) {
  RunStores stores(places, peers);
  stores.reclaim();
  const std::string run_id = stores.agree_on_run_id();
  RankState state(shape, peers.rank());
  const bool fits = stores.fits(state.layout());
  const std::uint64_t group = fits ? stores.current()->group : stores.next_group();
  WorldCommit commits(places.run, run_id, group, peers);
  if (fits) {
    state.open(stores.place(peers.rank()), stores.wanted(peers.rank()));
  } else if (!stores.current()) {
    state.create(stores.make_place(peers.rank(), shape.ranks));
    state.fill(first_step);
    state.commit(commits, run_id, group, first_step);
  } else {
    OpenGroup old = open_group(stores);
    state.create(stores.make_place(peers.rank(), shape.ranks));
    reshard(old.view, state.layout(), state.engine(), state.stream(), {});
    state.commit(commits, run_id, group, old.view.meta.step);
    old.close();
    stores.remove_current();
  }
  if (then) then(state, commits, run_id, group);
}

/// Takes the run to a step.
inline Then to_step(std::uint64_t step) {
  return [step](RankState& state, WorldCommit& commits, const std::string& run_id, std::uint64_t group) {
    state.fill(step);
    state.commit(commits, run_id, group, step);
  };
}

/// The step of the run's last commit. Fails the test where an element of any array is not that step's.
inline std::uint64_t check_run(const std::string& run) {
  OpenGroup open = open_run(run);
  CommittedState state(open.view, {});
  const std::uint64_t step = state.meta().step;
  using Array = CommittedState::Array;
  for (const auto& [array, number] : {std::pair{Array::master, 0}, {Array::moment1, 1}, {Array::moment2, 2}}) {
    std::vector<std::uint64_t> next(state.layout().params().size());
    std::uint64_t wrong = 0;
    state.stream(array,
                 [&, number = number](ParamId p, std::uint64_t begin, std::uint64_t count, const std::byte* data) {
                   wrong += begin != next[p.value] ? 1 : 0;
                   next[p.value] = begin + count;
                   for (std::uint64_t i = 0; i < count; ++i) {
                     const float value = step == 0 && number > 0 ? 0.0f : value_of(step, number, p.value, begin + i);
                     wrong += std::memcmp(&value, data + 4 * i, 4) != 0 ? 1 : 0;
                   }
                 });
    REQUIRE(wrong == 0);
    for (std::size_t p = 0; p < next.size(); ++p) {
      const bool there = number == 0 || !state.layout().params()[p].frozen;
      REQUIRE(next[p] == (there ? state.layout().params()[p].elements() : 0));
    }
  }
  for (std::size_t p = 0; p < state.meta().step_counts.size(); ++p) REQUIRE(state.meta().step_counts[p] == step + p);
  return step;
}

/// Names in the run folder that begin as stores do.
inline std::vector<std::string> stores_in(const std::string& run) {
  std::vector<std::string> names, stores;
  os::list_folder(run, &names);
  for (const std::string& name : names)
    if (name.starts_with("store")) stores.push_back(name);
  return stores;
}

}  // namespace transload::testing
