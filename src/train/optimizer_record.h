// The run record of a drop-in optimizer: the same lines as a training run's (docs/formats.md), less what only a trainer
// knows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "offload/store.h"
#include "trace/run_record.h"

namespace transload {

class OptimizerRecord {
 public:
  struct Budgets {
    std::uint64_t device = 0, host = 0, least = 0, frame = 0;  ///< bytes; least: of the host
  };
  OptimizerRecord(const std::string& path, const std::vector<BlockSpec>& blocks, const Budgets& budgets,
                  const std::optional<Store::Facts>& store);
  void step(std::uint64_t step, double seconds, const EngineCounters& before, const EngineCounters& after,
            const std::vector<AccessEvent>& accesses, const Timeline& timeline);

 private:
  RunRecord record_;
};

}  // namespace transload
