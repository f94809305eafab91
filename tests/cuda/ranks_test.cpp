// Many ranks that compute on GPUs, each a thread with a device of the stand-in's: collectives in device memory and
// through host memory give the same bits.
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "comm/ranks.h"
#include "cuda/small_run.h"
#include "train/accelerator.h"

namespace transload::testing {
namespace {

struct Ended {
  Json summary;
  std::string error, transport;
};

std::vector<Ended> train_on_gpus(int ranks, const TrainOptions& o, bool in_device_memory) {
  std::vector<Ended> all(static_cast<std::size_t>(ranks));
  CommOptions options;
  options.largest_bytes = 1 * MiB;
  options.timeout = std::chrono::seconds(60);
  const int port = free_port();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      Ended& ended = all[static_cast<std::size_t>(rank)];
      try {
        const auto connect = in_device_memory ? connect_accelerators : make_communicator;
        const std::unique_ptr<Communicator> communicator = connect(launch_of(rank, ranks, port), options);
        ended.transport = communicator->transport();
        std::atomic<int> interrupt{0};
        Trainer trainer(o, {}, communicator.get());
        ended.summary = Json::parse(trainer.run(interrupt));
      } catch (const std::exception& error) {
        ended.error = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const Ended& one : all) {
    INFO(one.error);
    REQUIRE(one.error.empty());
  }
  return all;
}

}  // namespace

TEST_CASE("Ranks on GPUs give the same bits by NCCL and through host memory") {
  TempFolder folder;
  TrainOptions o = small_options("llama", Recompute::layer, folder.path("run"));
  o.global_batch = 3;
  o.shape.accumulate = 1;
  o.steps = 3;
  o.device_memory = 96 * MiB;
  o.host_memory = 256 * MiB;
  std::string want;
  for (const bool in_device_memory : {false, true}) {
    stand_in::Settings settings = seeded_device(7, 20);
    settings.devices = 2;
    settings.device_bytes = 512 * MiB;
    begin(settings);
    o.run = folder.path(in_device_memory ? "nccl" : "host");
    const std::vector<Ended> all = train_on_gpus(2, o, in_device_memory);
    for (const Ended& one : all) {
      CHECK(one.transport == (in_device_memory ? "NCCL" : "shared memory"));
      CHECK(one.summary["losses"] == all[0].summary["losses"]);
      CHECK(one.summary["losses"].size() == 3);
    }
    CHECK(verify_run(o.run, {}).empty());
    const std::string fingerprint = fingerprint_run(o.run, {});
    if (want.empty()) want = fingerprint;
    CHECK(fingerprint == want);
  }
}

TEST_CASE("More local ranks than GPUs are refused") {
  stand_in::Settings settings = seeded_device(1, 0);
  settings.devices = 2;
  begin(settings);
  REQUIRE_THROWS_WITH(open_accelerator(2), Catch::Matchers::Contains("rank 2") && Catch::Matchers::Contains("2 GPUs"));
}

}  // namespace transload::testing
