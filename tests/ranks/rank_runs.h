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

/// Trains `o` on `ranks` ranks; the summary of each.
inline std::vector<Json> train_on(int ranks, const TrainOptions& o, bool shared_memory = true,
                                  const std::function<void(int rank)>& delay = {}) {
  std::vector<Json> summaries(static_cast<std::size_t>(ranks));
  const std::vector<std::string> errors = run_threads(ranks, ranks_by(shared_memory), [&](Communicator& communicator) {
    Observer observer;
    if (delay) observer.stepped = [&](const StepReport&) { delay(communicator.rank()); };
    std::atomic<int> interrupt{0};
    Trainer trainer(o, observer, &communicator);
    summaries[static_cast<std::size_t>(communicator.rank())] = Json::parse(trainer.run(interrupt));
  });
  for (const std::string& error : errors) {
    INFO(error);
    REQUIRE(error.empty());
  }
  return summaries;
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
