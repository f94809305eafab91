// OffloadedAdamW: the public API over tensor state, engine and a scratch store (transload/offloaded_adamw.h).
//
// Memory: one arena, as large as all state where the budget allows (then there is no store), else the budget. A
// reservation is the arena's workspace with its pages given back to the system. Staging for tensors on a device is
// taken beside the arena, from the same budget. Planning: a step's accesses are known before it begins; a plan is made
// where the chunks differ from the last step's.
#include "transload/offloaded_adamw.h"

#include <fmt/format.h>
#include <tbb/info.h>
#include <tbb/task_arena.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>

#include "base/check.h"
#include "base/error.h"
#include "base/os.h"
#include "base/size.h"
#include "engine/engine.h"
#include "offload/scratch_folder.h"
#include "optim/gradient_check.h"
#include "optim/tensor_pipeline.h"
#include "optim/tensor_state.h"
#include "plan/planner.h"
#include "train/busy_stream.h"
#include "train/optimizer_record.h"
#include "train/recording_access.h"
#include "train/trainer.h"

namespace transload {
namespace {

using Clock = std::chrono::steady_clock;

/// Slots beside one a block: for writes on their way.
constexpr std::uint64_t kSpareSlots = 16;
/// Room for transfers on their way that the least budget has.
constexpr std::uint64_t kLeastTransfers = 2;
constexpr std::uint64_t kMostChunkElements = 1 << 20;
/// Chunks that a budget should hold at once, so that reading, updating and writing overlap.
constexpr std::uint64_t kChunksHeld = 8;

/// No more than the process may run at once; oneTBB warns otherwise.
int workers_for(int threads) { return std::clamp(threads, 1, tbb::info::default_concurrency()); }

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// What tensors need: staging, and state in whole frames.
struct Needs {
  std::uint64_t staging = 0, frame = 0, all = 0, chunk = 0, block = 0;
  std::uint64_t least_arena() const { return std::min(all, chunk + kLeastTransfers * block); }
  std::uint64_t least() const { return staging + least_arena(); }
  std::uint64_t everything() const { return staging + all; }
};

Needs needs_of(const TensorState& state, std::uint64_t chunk_elements) {
  Needs needs;
  needs.staging = TensorPipeline::staging_bytes(state);
  needs.frame = frame_bytes_for(chunk_elements * 4);
  const auto whole = [&](std::uint64_t bytes) { return round_up(bytes, needs.frame); };
  for (const BlockSpec& block : state.blocks()) {
    needs.all += whole(block.bytes);
    needs.block = std::max(needs.block, whole(block.bytes));
  }
  for (std::size_t c = 0; c < state.chunks(); ++c) {
    std::uint64_t bytes = 0;
    for (const Access& a : state.trace({c}).accesses) bytes += whole(state.blocks()[a.block.value].bytes);
    needs.chunk = std::max(needs.chunk, bytes);
  }
  return needs;
}

std::vector<SlotClass> slot_classes(const std::vector<BlockSpec>& blocks) {
  std::map<std::uint64_t, std::uint64_t> counts;
  for (const BlockSpec& block : blocks) ++counts[block.bytes];
  std::vector<SlotClass> classes;
  for (const auto& [bytes, count] : counts) classes.push_back({.bytes = bytes, .count = count});
  if (!classes.empty()) classes.back().count += kSpareSlots;
  return classes;
}

TensorState state_of(const std::vector<OptimizerTensor>& tensors, const OffloadedAdamWOptions& options,
                     std::uint64_t chunk_elements) {
  if (options.moments == ElementType::fp16) throw InputError("Moments are fp32 or bf16; fp16 has too little range.");
  return TensorState(tensors, dtype_of(options.moments), options.seed, chunk_elements, options.device_memory);
}

std::uint64_t least_of(const Needs& needs, const OffloadedAdamWOptions& options) {
  return options.nvme.empty() ? needs.everything() : needs.least();
}

/// A chunk size, and what it makes the tensors need.
struct Choice {
  std::uint64_t elements = 0;
  Needs needs;
};

/// The largest chunks that are useful and of which the budget holds several where not everything fits; where even the
/// smallest are too large, those that need least.
Choice choose_chunks(const std::vector<OptimizerTensor>& tensors, const OffloadedAdamWOptions& options,
                     std::uint64_t host_memory) {
  const auto choice = [&](std::uint64_t elements) {
    return Choice{elements, needs_of(state_of(tensors, options, elements), elements)};
  };
  if (options.chunk_elements > 0) return choice(options.chunk_elements);
  Choice least;
  for (std::uint64_t elements = kMostChunkElements; elements >= kTile; elements /= 2) {
    const Choice now = choice(elements);
    if (now.needs.everything() <= host_memory) return now;
    if (!options.nvme.empty() && now.needs.staging + kChunksHeld * now.needs.chunk <= host_memory) return now;
    if (least.elements == 0 || least_of(now.needs, options) < least_of(least.needs, options)) least = now;
  }
  return least;
}

std::uint64_t available_memory() {
  const MemoryLimit limit = memory_limit();
  return limit.available_bytes - std::min(limit.available_bytes, limit.reserve_bytes);
}

/// Memory of the host that may be used, bytes.
std::uint64_t memory_given(const OffloadedAdamWOptions& options) {
  if (options.host_memory > 0) return options.host_memory;
  return options.nvme.empty() ? UINT64_MAX : available_memory();
}

/// What of the budget may be used. BudgetError where it is too small.
std::uint64_t checked_budget(const OffloadedAdamWOptions& options, const Needs& needs, std::uint64_t given) {
  const std::uint64_t least = least_of(needs, options);
  if (given >= least) return given;
  throw BudgetError(
      fmt::format("host_memory is {} bytes ({}), but the optimizer's state needs {} ({}){}", given, format_size(given),
                  least, format_size(least),
                  options.nvme.empty() ? ". Give that much, or a folder on a disk (nvme=…) for what does not fit."
                                       : fmt::format(" at least: one chunk and its transfers. Give that much{}.",
                                                     options.chunk_elements > kTile ? ", or smaller chunks" : "")),
      least, given);
}

std::string listed(const TensorState& state, const std::vector<std::size_t>& tensors) {
  constexpr std::size_t kShown = 20;
  std::string names;
  for (std::size_t i = 0; i < std::min(tensors.size(), kShown); ++i)
    names += (i == 0 ? "" : ", ") + state.tensor(tensors[i]).name;
  if (tensors.size() > kShown) names += fmt::format(" and {} more", tensors.size() - kShown);
  return names.empty() ? "none" : names;
}

/// Where no state is in memory of the host there is nothing to pin.
class NoBlocks final : public BlockAccess {
 public:
  Pin pin(BlockId block, Tier, AccessKind) override {
    TRANSLOAD_CHECK(false, "block {} of none", block.value);
    return {};
  }
  void unpin(Pin, Stream&) override {}
  std::byte* workspace(Tier, std::uint64_t) override { return nullptr; }
  void begin_backward() override {}
  bool dry() const override { return false; }
};

}  // namespace

struct OffloadedAdamW::Impl {
  Impl(const std::vector<OptimizerTensor>& tensors, const OffloadedAdamWOptions& options_in);
  ~Impl();

  void open_store();
  void plan(const std::vector<std::size_t>& chunks);
  void run(const std::vector<std::size_t>& chunks, void* caller_stream, StepProgress& progress);
  void update(std::size_t chunk, StepProgress& progress);
  [[noreturn]] void fail(StepProgress& progress, const std::exception& reason);
  void check_usable() const;
  BlockAccess& blocks() { return access ? static_cast<BlockAccess&>(*access) : no_blocks; }
  EngineCounters counters() const;
  EngineCounters with_moved(EngineCounters now) const;

  const OffloadedAdamWOptions options;
  const std::uint64_t given;  ///< host memory, bytes
  const Choice choice;
  const Needs& needs = choice.needs;
  TensorState state;
  std::uint64_t arena_bytes = 0;
  std::optional<ScratchFolder> scratch;
  std::unique_ptr<Store> store;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<RecordingAccess> access;
  NoBlocks no_blocks;
  std::unique_ptr<TensorPipeline> pipeline;  ///< where tensors are on a device
  std::unique_ptr<OptimizerRecord> record;
  std::optional<Timeline> timeline;  // where there is a record
  InlineStream inner;
  std::optional<BusyStream> stream;
  std::vector<std::size_t> planned;
  std::optional<tbb::task_arena> workers;
  int threads = 0;
  std::uint64_t reserved = 0, steps = 0;
  double step_s = 0;
  std::string failure;
};

OffloadedAdamW::Impl::Impl(const std::vector<OptimizerTensor>& tensors, const OffloadedAdamWOptions& options_in)
    : options(options_in),
      given(memory_given(options_in)),
      choice(choose_chunks(tensors, options_in, given)),
      state(state_of(tensors, options_in, choice.elements)),
      arena_bytes(std::min(checked_budget(options_in, needs, given) - needs.staging, needs.all)) {
  if (!options.record.empty()) timeline.emplace(Timeline::room_for(state.blocks().size()));
  stream.emplace(inner, Lane::host, timeline ? &*timeline : nullptr);
  if (state.device() != kOnHost) pipeline = std::make_unique<TensorPipeline>(state, options.device_arena);
  if (arena_bytes < needs.all) open_store();
  if (needs.all > 0) {
    EngineOptions engine_options;
    engine_options.host_bytes = arena_bytes;
    engine_options.frame_bytes = needs.frame;
    engine_options.timeline = timeline ? &*timeline : nullptr;
    engine = std::make_unique<Engine>(state.blocks(), engine_options, store.get());
    for (std::size_t b = 0; b < state.blocks().size(); ++b) engine->set_zero(BlockId(b));
    access = std::make_unique<RecordingAccess>(*engine, options.record.empty() ? 0 : state.blocks().size());
  }
  if (!options.record.empty())
    record = std::make_unique<OptimizerRecord>(
        options.record, state.blocks(),
        OptimizerRecord::Budgets{state.resident_bytes(), arena_bytes + needs.staging, needs.least(), needs.frame},
        store ? std::optional(store->facts()) : std::nullopt);
}

OffloadedAdamW::Impl::~Impl() {
  pipeline.reset();
  access.reset();
  engine.reset();
  store.reset();
  scratch.reset();
}

void OffloadedAdamW::Impl::open_store() {
  scratch.emplace(options.nvme);
  StoreOptions store_options;
  store_options.folder = scratch->path() + "/store";
  store_options.durable = false;
  if (!options.io_uring) store_options.io = IoPath::threads;
  store = Store::create(store_options, slot_classes(state.blocks()), [](std::uint64_t, std::uint64_t) {});
}

void OffloadedAdamW::Impl::plan(const std::vector<std::size_t>& chunks) {
  planned = chunks;
  if (chunks.empty()) return;
  const Trace trace = state.trace(chunks);
  PlanInput input;
  input.trace = &trace;
  input.blocks = &state.blocks();
  input.budgets.host_bytes = arena_bytes;
  input.budgets.nvme_bytes = UINT64_MAX;
  input.budgets.frame_bytes = needs.frame;
  input.in_flight_bytes[0] = input.in_flight_bytes[1] = std::min(16 * needs.block, (arena_bytes - needs.chunk) / 2);
  engine->set_plan(trace, make_plan(input));
}

void OffloadedAdamW::Impl::run(const std::vector<std::size_t>& chunks, void* caller_stream, StepProgress& progress) {
  std::vector<std::size_t> with_blocks;
  for (const std::size_t c : chunks)
    if (!state.resident(c)) with_blocks.push_back(c);
  if (store != nullptr && with_blocks != planned) plan(with_blocks);
  if (access) access->begin_step(false, timeline ? timeline->begin_ns() : host_clock_ns());
  if (store != nullptr) engine->begin_step();
  const bool devices = std::any_of(chunks.begin(), chunks.end(), [&](std::size_t c) { return state.on_device(c); });
  if (devices) pipeline->begin_step(chunks, caller_stream, progress);
  for (const std::size_t chunk : with_blocks) update(chunk, progress);
  if (store != nullptr) engine->end_step();
  if (devices) pipeline->end_step();
}

void OffloadedAdamW::Impl::update(std::size_t chunk, StepProgress& progress) {
  if (state.on_device(chunk)) {
    pipeline->update_next(blocks(), *stream, progress);
    return;
  }
  state.update_chunk(chunk, blocks(), *stream, nullptr);
  progress.begun.push_back(chunk);
  progress.done.push_back(chunk);
}

/// Chunks on a device are through when the device has said so.
void OffloadedAdamW::Impl::fail(StepProgress& progress, const std::exception& reason) {
  try {
    if (pipeline) pipeline->finish();
  } catch (const std::exception&) {
    std::erase_if(progress.done, [&](std::size_t c) { return state.on_device(c); });
  }
  for (std::vector<std::size_t>* chunks : {&progress.begun, &progress.done}) std::sort(chunks->begin(), chunks->end());
  std::vector<std::size_t> torn;
  std::vector<std::size_t> updated = state.updated(progress.begun, progress.done, &torn);
  failure = fmt::format("The step failed: {} Updated: {}.{} Load a checkpoint of model and optimizer to go on.",
                        reason.what(), listed(state, updated),
                        torn.empty() ? "" : fmt::format(" Updated in part: {}.", listed(state, torn)));
  throw StepFailed(failure, std::move(updated));
}

EngineCounters OffloadedAdamW::Impl::counters() const {
  return with_moved(engine ? engine->counters() : EngineCounters{});
}

/// The engine's counters, and what went between tensors on a device and the staging.
EngineCounters OffloadedAdamW::Impl::with_moved(EngineCounters now) const {
  const TensorState::Moved& moved = state.moved();
  LinkCounters& down = now.link[static_cast<int>(Link::device_to_host)];
  LinkCounters& up = now.link[static_cast<int>(Link::host_to_device)];
  down.bytes += moved.down_bytes;
  down.transfers += moved.down_copies;
  up.bytes += moved.up_bytes;
  up.transfers += moved.up_copies;
  return now;
}

void OffloadedAdamW::Impl::check_usable() const {
  if (!failure.empty()) throw Error(failure);
}

OffloadedAdamW::OffloadedAdamW(std::vector<OptimizerTensor> tensors, const OffloadedAdamWOptions& options)
    : impl_(std::make_unique<Impl>(tensors, options)) {}
OffloadedAdamW::~OffloadedAdamW() = default;

std::uint64_t OffloadedAdamW::least_memory(const std::vector<OptimizerTensor>& tensors,
                                           const OffloadedAdamWOptions& options) {
  return least_of(choose_chunks(tensors, options, 0).needs, options);
}

std::uint64_t OffloadedAdamW::device_bytes(const std::vector<OptimizerTensor>& tensors,
                                           const OffloadedAdamWOptions& options) {
  const Choice choice = choose_chunks(tensors, options, memory_given(options));
  return state_of(tensors, options, choice.elements).resident_bytes();
}

std::string OffloadedAdamW::cuda_unavailable() { return tensor_device_unavailable(); }

void OffloadedAdamW::step(const std::vector<TensorStep>& tensors, int threads, void* caller_stream) {
  Impl& s = *impl_;
  s.check_usable();
  reserve(0);
  const Clock::time_point start = Clock::now();
  if (threads != s.threads) {
    s.workers.emplace(workers_for(threads));
    s.threads = threads;
  }
  s.state.begin_step(tensors);
  const std::vector<std::size_t> chunks = s.state.active_chunks();
  StepProgress progress;
  const EngineCounters before = s.with_moved(s.engine ? s.engine->begin_timeline() : EngineCounters{});
  try {
    if (!chunks.empty()) s.workers->execute([&] { s.run(chunks, caller_stream, progress); });
  } catch (const std::exception& reason) {
    s.fail(progress, reason);
  }
  ++s.steps;
  const double seconds = seconds_since(start);
  s.step_s += seconds;
  const EngineCounters after = s.with_moved(s.engine ? s.engine->end_timeline() : EngineCounters{});
  static const std::vector<AccessEvent> none;
  if (s.record) s.record->step(s.steps, seconds, before, after, s.access ? s.access->events() : none, *s.timeline);
}

bool OffloadedAdamW::gradients_finite(const std::vector<TensorStep>& tensors, const std::vector<OptimizerTensor>& specs,
                                      int threads) {
  for (const TensorStep& t : tensors)
    if (specs.at(t.tensor).device != kOnHost)
      throw InputError(fmt::format("The gradient of {} is memory of a device: check it there.", specs[t.tensor].name));
  tbb::task_arena workers(workers_for(threads));
  return workers.execute([&] {
    return std::all_of(tensors.begin(), tensors.end(), [&](const TensorStep& t) {
      return all_finite(dtype_of(t.gradient_type), t.gradient, specs.at(t.tensor).elements);
    });
  });
}

std::uint64_t OffloadedAdamW::step_count(std::size_t tensor) const { return impl_->state.step_count(tensor); }
void OffloadedAdamW::set_step_count(std::size_t tensor, std::uint64_t steps) {
  impl_->check_usable();
  impl_->state.set_step_count(tensor, steps);
}

void OffloadedAdamW::read(std::size_t tensor, StatePlane plane, std::uint64_t first, std::uint64_t count,
                          const void* weight, float* out) {
  impl_->check_usable();
  impl_->state.read(tensor, plane, first, count, weight, out, impl_->blocks(), *impl_->stream);
}

void OffloadedAdamW::write(std::size_t tensor, StatePlane plane, std::uint64_t first, std::uint64_t count,
                           const float* in, void* weight) {
  impl_->check_usable();
  impl_->state.write(tensor, plane, first, count, in, weight, impl_->blocks(), *impl_->stream);
}

void OffloadedAdamW::reset(std::size_t tensor) {
  impl_->check_usable();
  impl_->state.reset(tensor, impl_->blocks(), *impl_->stream);
}

std::uint64_t OffloadedAdamW::reservable() const {
  const Impl& s = *impl_;
  const std::uint64_t beside = s.given - s.arena_bytes - s.needs.staging;
  const std::uint64_t within = s.store == nullptr ? 0 : s.arena_bytes - s.needs.least_arena();
  return beside + within / s.needs.frame * s.needs.frame;
}

bool OffloadedAdamW::reserve(std::uint64_t bytes) {
  Impl& s = *impl_;
  if (bytes == s.reserved) return true;
  s.check_usable();
  if (bytes > reservable()) return false;
  const std::uint64_t taken = s.arena_bytes + s.needs.staging;
  const std::uint64_t beside = s.store == nullptr ? bytes : std::max(s.options.host_memory, taken) - taken;
  const std::uint64_t within = round_up(bytes - std::min(bytes, beside), s.needs.frame);
  if (s.store != nullptr) {
    std::byte* const room = s.engine->workspace(Tier::host, within);
    if (room != nullptr) os::give_back_pages(room, within);
  }
  s.reserved = bytes;
  return true;
}

OptimizerReport OffloadedAdamW::report() const {
  const Impl& s = *impl_;
  OptimizerReport report;
  report.host_budget = s.given == UINT64_MAX ? s.arena_bytes + s.needs.staging : s.given;
  report.host_peak = s.needs.staging;
  report.host_reserved = s.reserved;
  report.device_state_bytes = report.state_bytes = s.state.resident_state_bytes();
  for (const BlockSpec& block : s.state.blocks()) report.state_bytes += block.bytes;
  report.device_read = s.state.moved().down_bytes;
  report.device_written = s.state.moved().up_bytes;
  if (s.pipeline) report.staging_reason = s.pipeline->unpinned_reason();
  report.table_bytes = s.state.table_bytes();
  report.steps = s.steps;
  report.step_s = s.step_s;
  if (s.engine) {
    const EngineCounters counters = s.engine->counters();
    report.host_peak += counters.peak_bytes[static_cast<int>(Tier::host)];
    report.wait_s = static_cast<double>(counters.wait_ns) / 1e9;
    report.hits = counters.hits;
    report.late = counters.late;
    report.demand = counters.demand;
    report.nvme_read = counters.link[static_cast<int>(Link::nvme_read)].bytes;
    report.nvme_written = counters.link[static_cast<int>(Link::nvme_write)].bytes;
  }
  if (s.store) {
    const Store::Facts facts = s.store->facts();
    report.nvme_bytes = facts.bytes_on_disk;
    report.io_path = facts.io_path;
    report.io_reason = facts.io_reason;
    report.direct = facts.direct;
    report.folder = s.scratch->path();
  }
  return report;
}

}  // namespace transload
