#include "train/optimizer_record.h"

#include <fmt/format.h>

#include "train/run_header.h"

namespace transload {

OptimizerRecord::OptimizerRecord(const std::string& path, const std::vector<BlockSpec>& blocks, const Budgets& budgets,
                                 const std::optional<Store::Facts>& store)
    : record_(path, RecordLimits{}) {
  record_.write("run", optimizer_header(blocks, budgets.device, budgets.host, budgets.least, budgets.frame, store));
  record_.flush();
}

void OptimizerRecord::step(std::uint64_t step, double seconds, const EngineCounters& before,
                           const EngineCounters& after, const std::vector<AccessEvent>& accesses,
                           const Timeline& timeline) {
  const std::uint64_t deviations = after.deviations - before.deviations;
  record_.write_step(
      step, deviations > 0,
      fmt::format("\"wall_ns\":{},{}", static_cast<std::uint64_t>(seconds * 1e9), counter_fields(before, after)),
      accesses, &timeline);
  record_.flush();
}

}  // namespace transload
