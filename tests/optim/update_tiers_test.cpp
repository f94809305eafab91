// Where a chunk is updated changes no bit: an engine over an emulated device, its streams on threads of their own, each
// chunk updated on the device or on the host, against the same steps with every update on the host.
#include <atomic>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "engine/engine.h"
#include "optim/optimizer.h"

using namespace transload;

namespace {

constexpr std::uint64_t kFrame = 4096;  // moments of several frames

/// Odd sizes, several to a chunk and several chunks to one; a frozen one between; one of a single element.
std::vector<ParamSpec> some_params() {
  return {
      {"a", {37, 70}, false}, {"b", {5}, false}, {"frozen", {300}, true}, {"c", {15003}, false}, {"one", {}, false}};
}

/// Counts what is updated on a device.
class Counted final : public UpdateKernels {
 public:
  void update(const ChunkUpdate& update) override {
    ++calls;
    inner_->update(update);
  }
  std::atomic<std::uint64_t> calls{0};

 private:
  std::unique_ptr<UpdateKernels> inner_ = make_cpu_update_kernels();
};

struct Case {
  Dtype dtype = Dtype::bf16;
  std::uint64_t chunk_bytes = 8192;
  std::vector<Tier> tiers;  ///< empty: host
  bool roomy = true;        ///< the device holds everything
};

class Rig {
 public:
  explicit Rig(const Case& c)
      : layout(some_params(), training_planes(c.dtype, c.dtype, true), c.chunk_bytes),
        device_(make_emulated_device(0)),
        compute_(64),
        host_(64),
        engine(layout.blocks(), engine_options(c), nullptr),
        optimizer(layout, engine, compute_, host_,
                  {.clip_norm = 0.5, .compute_tier = Tier::device, .update_tiers = c.tiers, .updates = counted},
                  {1, 2, 0, 1, 3}) {
    for (std::size_t b = 0; b < layout.blocks().size(); ++b) {
      const BlockSpec& block = layout.blocks()[b];
      if (block.plane == "gradient" || block.plane == "partial") continue;
      Pin pin = engine.pin(BlockId(b), Tier::host, AccessKind::write);
      pin.view.zero(0, block.bytes);
      if (block.plane == "weight") fill(pin.view, layout.chunk(layout.chunk_of(BlockId(b))));
      engine.unpin(std::move(pin), host_);
    }
  }
  ~Rig() { settle(); }

  /// A step; `bad` is given as the last parameter's gradient, `absent` takes no part.
  Verdict step(int number, float bad = 0, std::uint32_t absent = UINT32_MAX) {
    const std::uint32_t contributions[] = {1, 2, 0, 1, 3};
    for (std::size_t c = 0; c < layout.chunks().size(); ++c) engine.unpin(optimizer.use_weights(ChunkId(c)), compute_);
    values_.clear();
    for (std::uint32_t p = 5; p-- > 0;)
      for (std::uint32_t round = 0; round < contributions[p]; ++round) {
        std::vector<float>& values = values_.emplace_back(layout.param(ParamId(p)).elements());
        std::mt19937 random(p * 7919 + round * 977 + static_cast<unsigned>(number) * 13);
        for (float& v : values) v = std::ldexp(static_cast<float>(random()) / 2147483648.0f - 1.0f, -4);
        if (p == 4 && bad != 0) values[0] = bad;
        optimizer.contribute(ParamId(p), 0, values.size(), values.data());
      }
    const Verdict verdict = optimizer.finish_backward();
    std::vector<ParamHyper> hyper(5, {{.lr = 1e-2, .weight_decay = 0.1}, true});
    if (absent < 5) hyper[absent].present = false;
    optimizer.step(verdict, hyper);
    return verdict;
  }

  /// Bytes of every plane that a commit would keep, padding included.
  std::vector<std::byte> state() {
    optimizer.flush();
    settle();
    std::vector<std::byte> all;
    for (std::size_t b = 0; b < layout.blocks().size(); ++b) {
      const BlockSpec& block = layout.blocks()[b];
      if (!block.durable) continue;
      Pin pin = engine.pin(BlockId(b), Tier::host, AccessKind::read);
      pin.ready.wait();
      std::vector<std::byte> bytes(block.bytes);
      pin.view.copy_out(bytes.data(), 0, block.bytes);
      all.insert(all.end(), bytes.begin(), bytes.end());
      engine.unpin(std::move(pin), host_);
    }
    settle();
    return all;
  }
  void settle() {
    compute_.synchronize();
    host_.synchronize();
  }
  std::uint64_t to_host_bytes() const { return engine.counters().link[static_cast<int>(Link::device_to_host)].bytes; }
  std::uint64_t to_device_bytes() const { return engine.counters().link[static_cast<int>(Link::host_to_device)].bytes; }

  Layout layout;
  std::shared_ptr<Counted> counted = std::make_shared<Counted>();

 private:
  EngineOptions engine_options(const Case& c) const {
    EngineOptions options;
    options.device_bytes = c.roomy ? 1 << 20 : 14 * c.chunk_bytes;
    options.host_bytes = 1 << 20;
    options.frame_bytes = kFrame;
    options.device = device_.get();
    return options;
  }
  void fill(const BlockView& view, const Chunk& chunk) const {
    const std::uint64_t size = size_of(layout.weight_dtype());
    for (const Piece& piece : chunk.pieces)
      for (std::uint64_t i = 0; i < piece.count; ++i) {
        const float w = std::sin(static_cast<float>(piece.param.value * 131 + (piece.param_begin + i) * 7 % 1009));
        const bf16 rounded = round_to_bf16(w);
        const std::uint64_t at = (piece.chunk_begin + i) * size;
        view.copy_in(size == 4 ? static_cast<const void*>(&w) : &rounded, at, at + size);
      }
  }

  std::unique_ptr<Device> device_;
  QueueStream compute_, host_;
  std::vector<std::vector<float>> values_;  // read on the compute stream

 public:
  Engine engine;
  Optimizer optimizer;
};

/// Three steps that count, and between them one that is not finite and one without a parameter.
std::vector<std::byte> train(Rig& rig) {
  CHECK(rig.step(1).finite);
  CHECK_FALSE(rig.step(2, std::numeric_limits<float>::infinity()).finite);
  CHECK_FALSE(rig.step(2, std::nanf("")).finite);
  CHECK(rig.step(3, 0, 1).finite);
  CHECK(rig.step(4).finite);
  const std::vector<std::byte> state = rig.state();
  CHECK(rig.optimizer.step_counts() == std::vector<std::uint64_t>{3, 2, 0, 3, 3});
  return state;
}

std::size_t chunks_of(const Case& c) { return Rig(c).layout.chunks().size(); }

}  // namespace

TEST_CASE("where a chunk is updated changes no bit of its state") {
  const Dtype dtype = GENERATE(Dtype::bf16, Dtype::f32);
  const std::uint64_t chunk_bytes = GENERATE(8192u, 12288u, 65536u);
  CAPTURE(static_cast<int>(dtype), chunk_bytes);
  Case c{.dtype = dtype, .chunk_bytes = chunk_bytes, .tiers = {}};
  Rig on_host(c);
  const std::vector<std::byte> expected = train(on_host);
  CHECK(on_host.counted->calls == 0);
  const std::size_t chunks = on_host.layout.chunks().size();
  std::mt19937 random(5);
  for (int round = 0; round < 6; ++round) {
    c.tiers.assign(chunks, Tier::device);
    c.roomy = round % 2 == 0;
    for (std::size_t i = 0; round > 1 && i < chunks; ++i)
      if (random() % 2 == 0) c.tiers[i] = Tier::host;
    CAPTURE(round);
    Rig rig(c);
    const bool same = train(rig) == expected;  // too long to print
    REQUIRE(same);
    std::uint64_t updates = 0;
    for (std::size_t i = 0; i < chunks; ++i)
      updates += c.tiers[i] == Tier::device && !rig.layout.chunks()[i].frozen ? 3 : 0;
    CHECK(rig.counted->calls == updates);
  }
}

TEST_CASE("what is updated on a device that holds it does not leave it, nor come to it") {
  Case c;
  c.tiers.assign(chunks_of({}), Tier::device);
  Rig rig(c);
  rig.step(1);
  rig.step(2);  // all state has come
  rig.settle();
  const std::uint64_t up = rig.to_device_bytes();
  for (int step = 3; step < 6; ++step) rig.step(step);
  rig.settle();
  CHECK(rig.to_device_bytes() == up);
  CHECK(rig.to_host_bytes() == 0);
}

TEST_CASE("for a commit what a device has updated comes to host memory once, and nothing where nothing was pending") {
  Case c;
  c.tiers.assign(chunks_of({}), Tier::device);
  Rig rig(c);
  rig.optimizer.flush_to_host();
  rig.settle();
  CHECK(rig.to_host_bytes() == 0);
  rig.step(1);
  rig.step(2);
  rig.optimizer.flush_to_host();
  rig.settle();
  std::uint64_t updated = 0;
  for (std::size_t b = 0; b < rig.layout.blocks().size(); ++b) {
    const BlockSpec& block = rig.layout.blocks()[b];
    const bool frozen = rig.layout.chunk(rig.layout.chunk_of(BlockId(b))).frozen;
    updated += block.durable && !frozen ? block.bytes : 0;
  }
  CHECK(rig.to_host_bytes() == updated);
  rig.optimizer.flush_to_host();
  rig.settle();
  CHECK(rig.to_host_bytes() == updated);
}
