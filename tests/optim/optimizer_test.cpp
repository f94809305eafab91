// The update pipeline against a plain double-precision AdamW, and against itself: bits may not depend on chunk size,
// scattering, or when an update is applied.
#include "optim/optimizer.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <random>

#include "train/in_memory_blocks.h"

using namespace transload;
using transload::testing::InMemoryBlocks;
using transload::testing::Placement;

namespace {

const kernels::AdamwHyper kHyper{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};

std::vector<ParamSpec> some_params() {
  return {{"a", {37, 70}, false}, {"b", {5}, false}, {"frozen", {300}, true}, {"c", {3000}, false}, {"one", {}, false}};
}

/// A layout, its blocks in memory, and an optimizer over them.
struct Rig {
  Rig(Dtype dtype, std::uint64_t chunk_bytes, Placement placement, std::vector<std::uint32_t> contributions,
      double clip)
      : layout(some_params(), training_planes(dtype, dtype, true), chunk_bytes),
        blocks(layout.blocks(), placement),
        optimizer(layout, blocks, stream, stream, {.clip_norm = clip, .compute_tier = Tier::host},
                  std::move(contributions)) {
    for (std::size_t c = 0; c < layout.chunks().size(); ++c) fill(ChunkId(c));
  }

  void fill(ChunkId c) {
    for (const char* plane : {"weight", "residue", "moment1", "moment2"}) {
      const BlockId id = layout.block(c, layout.plane(plane));
      if (!id.valid()) continue;
      Pin pin = blocks.pin(id, Tier::host, AccessKind::write);
      pin.view.zero(0, pin.view.bytes());
      if (std::string(plane) == "weight") set_weights(layout.chunk(c), pin.view);
      blocks.unpin(std::move(pin), stream);
    }
  }
  void set_weights(const Chunk& chunk, const BlockView& view) {
    for (const Piece& piece : chunk.pieces)
      for (std::uint64_t i = 0; i < piece.count; ++i) {
        const float w = start(piece.param, piece.param_begin + i);
        const std::uint64_t at = piece.chunk_begin + i;
        if (layout.weight_dtype() == Dtype::f32) {
          view.copy_in(&w, at * 4, at * 4 + 4);
        } else {
          const bf16 b = round_to_bf16(w);
          view.copy_in(&b, at * 2, at * 2 + 2);
        }
      }
  }
  static float start(ParamId p, std::uint64_t i) {
    return to_float(round_to_bf16(std::sin(static_cast<float>(p.value * 131 + i * 7 % 1009))));
  }

  /// Contribution `round` of a step, elements in pieces of `grain`.
  void contribute(ParamId p, std::uint32_t round, int step, std::uint64_t grain) {
    const std::uint64_t n = layout.param(p).elements();
    for (std::uint64_t begin = 0; begin < n; begin += grain) {
      std::vector<float> values(std::min(grain, n - begin));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = gradient(p, begin + i, round, step);
      optimizer.contribute(p, begin, values.size(), values.data());
    }
  }
  static float gradient(ParamId p, std::uint64_t i, std::uint32_t round, int step) {
    std::mt19937 random(
        static_cast<unsigned>(p.value * 7919 + i * 31 + round * 977 + static_cast<unsigned>(step) * 13));
    return std::ldexp(static_cast<float>(random()) / 2147483648.0f - 1.0f, static_cast<int>(random() % 8) - 6);
  }

  Verdict step(int number, const std::vector<std::uint32_t>& contributions, std::uint64_t grain,
               std::vector<ParamHyper> hyper = {}) {
    for (std::uint32_t p = static_cast<std::uint32_t>(contributions.size()); p-- > 0;)
      for (std::uint32_t round = 0; round < contributions[p]; ++round) contribute(ParamId(p), round, number, grain);
    const Verdict verdict = optimizer.finish_backward();
    if (hyper.empty()) hyper.assign(layout.params().size(), {kHyper, true});
    optimizer.step(verdict, hyper);
    return verdict;
  }

  /// Elements of a plane of a parameter, as float (weights joined with their residue).
  std::vector<float> values(ParamId p, const char* plane) {
    std::vector<float> all;
    for (const Piece& piece : layout.pieces(p)) {
      const std::vector<std::byte> bytes = plane_bytes(piece, plane);
      const bool joined = std::string(plane) == "weight" && layout.weight_dtype() == Dtype::bf16;
      const std::vector<std::byte> residue = joined ? plane_bytes(piece, "residue") : std::vector<std::byte>();
      for (std::uint64_t i = 0; i < piece.count; ++i) {
        if (joined) {
          all.push_back(join_master(reinterpret_cast<const bf16*>(bytes.data())[i],
                                    reinterpret_cast<const std::int16_t*>(residue.data())[i]));
        } else {
          all.push_back(reinterpret_cast<const float*>(bytes.data())[i]);
        }
      }
    }
    return all;
  }
  std::vector<std::byte> plane_bytes(const Piece& piece, const char* plane) {
    const int index = layout.plane(plane);
    const std::uint64_t size = size_of(layout.planes()[static_cast<std::size_t>(index)].dtype);
    std::vector<std::byte> bytes(piece.count * size);
    Pin pin = blocks.pin(layout.block(piece.chunk, index), Tier::host, AccessKind::read);
    pin.view.copy_out(bytes.data(), piece.chunk_begin * size, (piece.chunk_begin + piece.count) * size);
    blocks.unpin(std::move(pin), stream);
    return bytes;
  }

  Layout layout;
  InMemoryBlocks blocks;
  InlineStream stream;
  Optimizer optimizer;
};

/// Bits of master and moments of every trainable parameter.
std::vector<std::uint32_t> bits_of(Rig& rig) {
  std::vector<std::uint32_t> bits;
  for (std::size_t p = 0; p < rig.layout.params().size(); ++p) {
    if (rig.layout.params()[p].frozen) continue;
    for (const char* plane : {"weight", "moment1", "moment2"})
      for (const float v : rig.values(ParamId(p), plane)) bits.push_back(std::bit_cast<std::uint32_t>(v));
  }
  return bits;
}

const std::vector<std::uint32_t> kOnce = {1, 1, 0, 1, 1};
const std::vector<std::uint32_t> kSeveral = {3, 1, 0, 2, 4};

}  // namespace

TEST_CASE("three steps follow AdamW in double precision") {
  const Dtype dtype = GENERATE(Dtype::f32, Dtype::bf16);
  Rig rig(dtype, 8192, Placement::scattered, kSeveral, 1.0);
  std::vector<std::vector<double>> w, m, v;
  for (std::uint32_t p = 0; p < 5; ++p) {
    const auto n = rig.layout.param(ParamId(p)).elements();
    w.emplace_back(n);
    for (std::uint64_t i = 0; i < n; ++i) w[p][i] = Rig::start(ParamId(p), i);
    m.emplace_back(n);
    v.emplace_back(n);
  }
  for (int step = 1; step <= 3; ++step) {
    const Verdict verdict = rig.step(step, kSeveral, 1000);
    std::vector<std::vector<double>> g(5);
    double square = 0;
    for (std::uint32_t p = 0; p < 5; ++p) {
      if (kSeveral[p] == 0) continue;
      for (std::uint64_t i = 0; i < w[p].size(); ++i) {
        float sum = Rig::gradient(ParamId(p), i, 0, step);
        for (std::uint32_t r = 1; r < kSeveral[p]; ++r) sum += Rig::gradient(ParamId(p), i, r, step);
        g[p].push_back(dtype == Dtype::bf16 ? to_float(round_to_bf16(sum)) : sum);
        square += g[p].back() * g[p].back();
      }
    }
    REQUIRE(verdict.finite);
    REQUIRE(verdict.norm == Approx(std::sqrt(square)).epsilon(1e-14));
    const double scale = std::min(1.0, 1.0 / (std::sqrt(square) + 1e-6));
    for (std::uint32_t p = 0; p < 5; ++p)
      for (std::uint64_t i = 0; i < g[p].size(); ++i) {
        const double gi = g[p][i] * scale;
        m[p][i] += (1 - kHyper.beta1) * (gi - m[p][i]);
        v[p][i] = kHyper.beta2 * v[p][i] + (1 - kHyper.beta2) * gi * gi;
        const double denominator = std::sqrt(v[p][i] / (1 - std::pow(kHyper.beta2, step))) + kHyper.epsilon;
        w[p][i] = w[p][i] * (1 - kHyper.lr * kHyper.weight_decay) -
                  kHyper.lr / (1 - std::pow(kHyper.beta1, step)) * m[p][i] / denominator;
      }
  }
  rig.optimizer.flush();
  for (std::uint32_t p = 0; p < 5; ++p) {
    const auto got = rig.values(ParamId(p), "weight");
    REQUIRE(got.size() == w[p].size());
    // Three updates of lr at most, each a few roundings: 8 ulp of the larger of weight and step.
    int wrong = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      wrong += !(std::abs(got[i] - w[p][i]) <= 8 * 6e-8 * std::max(std::abs(w[p][i]), 3 * kHyper.lr));
    CHECK(wrong == 0);
    CHECK(rig.optimizer.step_counts()[p] == (kSeveral[p] > 0 ? 3 : 0));
  }
}

TEST_CASE("bits depend on nothing but gradients and hyperparameters") {
  const Dtype dtype = GENERATE(Dtype::f32, Dtype::bf16);
  const auto& contributions = GENERATE_REF(kOnce, kSeveral);
  const auto run = [&](std::uint64_t chunk, Placement placement, std::uint64_t grain, bool flush) {
    Rig rig(dtype, chunk, placement, contributions, 0.5);
    for (int step = 1; step <= 3; ++step) {
      rig.step(step, contributions, grain);
      if (flush) rig.optimizer.flush();
    }
    rig.optimizer.flush();
    return bits_of(rig);
  };
  const auto expected = run(1 << 20, Placement::contiguous, 1 << 20, true);
  CHECK(run(8192, Placement::contiguous, 1024, false) == expected);
  CHECK(run(8192, Placement::scattered, 777, true) == expected);
  CHECK(run(1 << 20, Placement::scattered, 128, false) == expected);
}

TEST_CASE("a step with gradients that are not finite changes nothing") {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Rig rig(Dtype::bf16, 8192, Placement::contiguous, kOnce, 1.0);
    rig.step(1, kOnce, 4096);
    rig.optimizer.flush();
    const auto before = bits_of(rig);
    for (std::uint32_t p : {0u, 1u, 3u}) rig.contribute(ParamId(p), 0, 2, 4096);
    rig.optimizer.contribute(ParamId(4), 0, 1, &bad);
    const Verdict verdict = rig.optimizer.finish_backward();
    CHECK_FALSE(verdict.finite);
    rig.optimizer.step(verdict, std::vector<ParamHyper>(5, {kHyper, true}));
    rig.optimizer.flush();
    CHECK(bits_of(rig) == before);
    CHECK(rig.optimizer.step_counts() == std::vector<std::uint64_t>{1, 1, 0, 1, 1});
    CHECK(rig.step(3, kOnce, 4096).finite);
    rig.optimizer.flush();
    CHECK(bits_of(rig) != before);
  }
}

TEST_CASE("a parameter without a gradient keeps its state and its count; its neighbours in the chunk move") {
  Rig rig(Dtype::bf16, 1 << 20, Placement::contiguous, kOnce, 0);
  const auto before = rig.values(ParamId(1), "weight");
  const auto neighbour = rig.values(ParamId(0), "weight");
  std::vector<ParamHyper> hyper(5, {kHyper, true});
  hyper[1].present = false;
  rig.step(1, kOnce, 4096, hyper);
  rig.optimizer.flush();
  CHECK(rig.values(ParamId(1), "weight") == before);
  CHECK(rig.values(ParamId(1), "moment2") == std::vector<float>(5, 0.0f));
  CHECK(rig.optimizer.step_counts() == std::vector<std::uint64_t>{1, 0, 0, 1, 1});
  CHECK(rig.values(ParamId(0), "weight") != neighbour);
}

TEST_CASE("weights are updated before they are used") {
  Rig rig(Dtype::bf16, 8192, Placement::contiguous, kOnce, 0);
  const auto before = rig.values(ParamId(3), "weight");
  rig.step(1, kOnce, 4096);
  const ChunkId chunk = rig.layout.pieces(ParamId(3))[0].chunk;
  CHECK(rig.values(ParamId(3), "weight") == before);
  rig.blocks.unpin(rig.optimizer.use_weights(chunk), rig.stream);
  CHECK(rig.values(ParamId(3), "weight") != before);
}
