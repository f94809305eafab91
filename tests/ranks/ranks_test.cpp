// Many ranks: PyTorch's figures on any number of them, and bits that depend on that number alone.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <random>
#include <thread>

#include "ranks/rank_runs.h"

namespace transload::testing {
namespace {

Json expected(const std::string& model) { return Json::parse(std::ifstream(reference(model) + "/expected.json")); }

std::vector<double> numbers(const Json& values) { return values.get<std::vector<double>>(); }

}  // namespace

TEST_CASE("1, 2, 3 and 4 ranks, the last of them without samples, take PyTorch's five steps") {
  const auto* model = GENERATE("gpt2", "llama", "qwen2");
  const int ranks = GENERATE(1, 2, 3, 4);
  CAPTURE(model, ranks);
  const Json want = expected(model);
  TempFolder folder;
  TrainOptions o = reference_options(model, Dtype::f32, folder.path("run"));
  o.nvme_capacity = 0;
  for (const Json& got : train_on(ranks, o)) {
    const std::vector<double> losses = numbers(got["losses"]), norms = numbers(got["grad_norms"]);
    REQUIRE(losses.size() == 5);
    for (std::size_t step = 0; step < 5; ++step) {
      CAPTURE(step);
      const double loss = numbers(want["losses"])[step], norm = numbers(want["grad_norms"])[step];
      // As one rank (reference_test.cpp); sums over ranks add a rounding a level of the tree.
      CHECK(std::abs(losses[step] - loss) <= 1e-6 * loss);
      CHECK(std::abs(norms[step] - norm) <= 5e-6 * norm);
    }
  }
}

TEST_CASE("on a number of ranks, placement, transport and delays change no bit") {
  const int ranks = GENERATE(2, 3);
  CAPTURE(ranks);
  const auto losses_of = [&](const auto& change, bool shared_memory = true,
                             const std::function<void(int)>& delay = {}) {
    TempFolder folder;
    TrainOptions o = reference_options("llama", Dtype::bf16, folder.path("run"));
    o.nvme_capacity = 0;
    o.global_batch = 5;
    o.shape.batch = 1;
    o.steps = 4;
    change(o);
    const std::vector<Json> all = train_on(ranks, o, shared_memory, delay);
    for (const Json& one : all) {
      REQUIRE(one["losses"] == all[0]["losses"]);
      REQUIRE(one["grad_norms"] == all[0]["grad_norms"]);
    }
    return all[0]["losses"].dump() + all[0]["grad_norms"].dump();
  };
  const std::string want = losses_of([](TrainOptions&) {});
  CHECK(losses_of([](TrainOptions& o) { o.chunk_size = 16 * KiB; }) == want);
  CHECK(losses_of([](TrainOptions& o) { o.chunk_size = 512 * KiB; }) == want);
  CHECK(losses_of([](TrainOptions& o) { o.lru = true; }) == want);
  CHECK(losses_of([](TrainOptions& o) { o.shape.recompute = Recompute::none; }) == want);
  CHECK(losses_of([](TrainOptions& o) {
          o.device = DeviceKind::emulated;
          o.device_memory = 4 * MiB;
        }) == want);
#ifdef TRANSLOAD_HAVE_GLOO
  CHECK(losses_of([](TrainOptions&) {}, false) == want);
#endif
  for (unsigned seed = 0; seed < 20; ++seed)
    CHECK(losses_of([](TrainOptions& o) { o.chunk_size = 32 * KiB; }, seed % 2 == 0,
                    [seed](int rank) {
                      std::mt19937 random(seed * 64 + static_cast<unsigned>(rank));
                      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
                    }) == want);
}

}  // namespace transload::testing
