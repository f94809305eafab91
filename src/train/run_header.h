// The fields of the run record's lines: its header, its steps. Keys are documented in docs/formats.md.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "train/planning.h"
#include "train/summary.h"

namespace transload {

/// Which GPU, what it has, how host memory was taken; null without one.
nlohmann::json gpu_json(const Accelerator* accelerator);

/// A JSON number; null where it is not finite.
std::string json_number(double v);

std::string run_header(const TrainOptions& options, const Prepared& prepared, const Rates& rates,
                       const std::optional<Store::Facts>& store, const Accelerator* accelerator,
                       std::uint64_t steps_before);

/// The header where a drop-in optimizer keeps the record; budgets in bytes.
std::string optimizer_header(const std::vector<BlockSpec>& blocks, std::uint64_t device_bytes, std::uint64_t host_bytes,
                             std::uint64_t least_bytes, std::uint64_t frame_bytes,
                             const std::optional<Store::Facts>& store);

/// What moved and what waited between two readings of the counters.
std::string counter_fields(const EngineCounters& before, const EngineCounters& after);

std::string step_fields(const StepReport& step, const StepSample& sample, const EngineCounters& before,
                        const EngineCounters& after);

}  // namespace transload
