// Runs of the trainer on several ranks, each a thread of the test.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/ranks.h"
#include "train/run_cases.h"

namespace transload::testing {

inline CommOptions ranks_by(bool shared_memory) {
  CommOptions options;
  options.largest_bytes = 1 * MiB;
  options.timeout = std::chrono::seconds(20);
  options.shared_memory = shared_memory;
  return options;
}

/// `body` on each rank; fails with the first error.
inline void on_ranks(int ranks, bool shared_memory, const Body& body) {
  const std::vector<std::string> errors = run_threads(ranks, ranks_by(shared_memory), body);
  for (const std::string& error : errors) {
    INFO(error);
    REQUIRE(error.empty());
  }
}

/// Trains `o` on `ranks` ranks; the summary of each.
inline std::vector<Json> train_on(int ranks, const TrainOptions& o, bool shared_memory = true,
                                  const std::function<void(int rank)>& delay = {}) {
  std::vector<Json> summaries(static_cast<std::size_t>(ranks));
  on_ranks(ranks, shared_memory, [&](Communicator& communicator) {
    Observer observer;
    if (delay) observer.stepped = [&](const StepReport&) { delay(communicator.rank()); };
    std::atomic<int> interrupt{0};
    Trainer trainer(o, observer, &communicator);
    summaries[static_cast<std::size_t>(communicator.rank())] = Json::parse(trainer.run(interrupt));
  });
  return summaries;
}

/// Gives `o` a host budget of `times` the least that the planner accepts on so many ranks, their buffers included.
inline void set_budget_on(int ranks, TrainOptions& o, double times) {
  on_ranks(ranks, true, [&](Communicator& communicator) {
    const RunPlan plan = Trainer(o, {}, &communicator).plan();
    const auto least = static_cast<std::uint64_t>(static_cast<double>(plan.least_host_bytes) * times);
    communicator.barrier();  // all have planned with the budget that they were given
    if (communicator.rank() == 0) o.host_memory = round_up(least, plan.frame_bytes) + communicator.memory_bytes();
  });
}

/// The reference's recipe (tests/reference/README.md): two samples a step in order.
inline TrainOptions reference_options(const std::string& model, Dtype dtype, const std::string& run) {
  TrainOptions o;
  o.model = reference(model);
  o.data = o.model + "/tokens.bin";
  o.run = run;
  o.order = Order::sequential;
  o.shape = {.batch = 2, .length = 32};
  o.global_batch = 2;
  o.steps = 5;
  o.learning_rate = 1e-3;
  o.dtype = o.gradients = dtype;
  o.threads = 1;
  o.chunk_size = 64 * KiB;
  o.host_memory = 1 * GiB;
  return o;
}

}  // namespace transload::testing
