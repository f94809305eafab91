// Law 1, end to end: the same training with everything in memory and with almost nothing, on every path, gives the same
// bits.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "train/run_cases.h"

using namespace transload;
using namespace transload::testing;

namespace {

const std::vector<double> kBudgets = {0, 1, 1.3, 3};
const std::vector<std::uint64_t> kSmallChunks = {8 * KiB, 64 * KiB, 1 * MiB};
const std::vector<std::uint64_t> kLargeChunks = {256 * KiB, 2 * MiB, 32 * MiB};
const std::vector<int> kThreads = {1, 2, 4};

/// Sizes of the factors of a case, and the case that a choice of levels makes.
const std::vector<std::size_t> kFactors = {4, 2, 2, 3, 3, 2, 2, 2};

RunCase case_of(const std::vector<std::size_t>& level, const std::vector<std::uint64_t>& chunks) {
  RunCase c;
  c.budget = kBudgets[level[0]];
  c.device = level[1] == 0 ? DeviceKind::cpu : DeviceKind::emulated;
  c.lru = level[2] == 1;
  c.chunk = chunks[level[3]];
  c.threads = kThreads[level[4]];
  c.io = level[5] == 0 ? IoPath::automatic : IoPath::threads;
  c.recompute = level[6] == 0 ? Recompute::layer : Recompute::none;
  c.interrupted = level[7] == 1;
  return c;
}

/// Rows of levels such that every pair of levels of two factors appears: greedy over random candidates, seeded.
std::vector<std::vector<std::size_t>> pairwise(std::uint32_t seed) {
  using Pair = std::array<std::size_t, 4>;
  std::map<Pair, bool> open;
  const std::size_t n = kFactors.size();
  for (std::size_t f = 0; f < n; ++f)
    for (std::size_t g = f + 1; g < n; ++g)
      for (std::size_t a = 0; a < kFactors[f]; ++a)
        for (std::size_t b = 0; b < kFactors[g]; ++b) open[{f, a, g, b}] = true;
  std::mt19937 random(seed);
  std::vector<std::vector<std::size_t>> rows;
  const auto covered = [&](const std::vector<std::size_t>& row) {
    std::vector<Pair> pairs;
    for (std::size_t f = 0; f < n; ++f)
      for (std::size_t g = f + 1; g < n; ++g)
        if (open.contains({f, row[f], g, row[g]})) pairs.push_back({f, row[f], g, row[g]});
    return pairs;
  };
  while (!open.empty()) {
    std::vector<std::size_t> best;
    for (int attempt = 0; attempt < 200; ++attempt) {
      std::vector<std::size_t> row(n);
      for (std::size_t f = 0; f < n; ++f) row[f] = random() % kFactors[f];
      if (best.empty() || covered(row).size() > covered(best).size()) best = row;
    }
    for (const Pair& pair : covered(best)) open.erase(pair);
    rows.push_back(best);
  }
  return rows;
}

void check_case(const RunCase& c, const std::string& expected) {
  INFO(c.name());
  const RunResult result = run_case(c);
  CHECK(result.fingerprint == expected);
  const Json& host = result.summary["tiers"]["host"];
  CHECK(host["peak"].get<std::uint64_t>() <= host["budget"].get<std::uint64_t>());
  if (c.device == DeviceKind::emulated) {
    const Json& device = result.summary["tiers"]["device"];
    CHECK(device["peak"].get<std::uint64_t>() <= device["budget"].get<std::uint64_t>());
  }
}

/// Everything in memory, one chunk, one thread: what all others are held against.
std::string plain_fingerprint(const std::string& model, Dtype dtype, std::uint64_t steps) {
  return run_case({.model = model, .chunk = 32 * MiB, .dtype = dtype, .steps = steps}).fingerprint;
}

}  // namespace

TEST_CASE("Every pair of placements, policies and paths gives the same bits") {
  const std::string expected = plain_fingerprint("llama", Dtype::bf16, 6);
  for (const auto& row : pairwise(7)) check_case(case_of(row, kSmallChunks), expected);
}

TEST_CASE("Other families and fp32 keep their bits at the least budget") {
  for (const char* model : {"gpt2", "qwen2", "llama"})
    for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
      const std::string expected = plain_fingerprint(model, dtype, 3);
      for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::emulated})
        check_case({.model = model, .budget = 1, .device = device, .chunk = 16 * KiB, .threads = 2, .dtype = dtype,
                    .steps = 3},
                   expected);
    }
}

TEST_CASE("Another seed, step count or learning rate gives another fingerprint") {
  TempFolder folder;
  TrainOptions o = options_of({.steps = 2}, folder.path("a"));
  train(o);
  const std::string a = fingerprint_run(o.run, {});
  o.run = folder.path("b");
  o.seed = 2;  // another order of samples
  train(o);
  CHECK(fingerprint_run(o.run, {}) != a);
  o.run = folder.path("c");
  o.seed = 1;
  o.learning_rate = 1.1e-3;
  train(o);
  CHECK(fingerprint_run(o.run, {}) != a);
}

TEST_CASE("Every combination gives the same bits", "[.full]") {
  const std::string expected = plain_fingerprint("llama", Dtype::bf16, 20);
  std::vector<std::size_t> level(kFactors.size(), 0);
  for (;;) {
    RunCase c = case_of(level, kLargeChunks);
    c.steps = 20;
    check_case(c, expected);
    std::size_t f = 0;
    while (f < level.size() && ++level[f] == kFactors[f]) level[f++] = 0;
    if (f == level.size()) break;
  }
}
