// The fields of the run record's lines: its header, its steps. Keys are documented in docs/formats.md.
#pragma once

#include <optional>
#include <string>

#include "train/planning.h"
#include "train/summary.h"

namespace transload {

/// A JSON number; null where it is not finite.
std::string json_number(double v);

std::string run_header(const TrainOptions& options, const Prepared& prepared, const Rates& rates,
                       const std::optional<Store::Facts>& store, std::uint64_t steps_before);

std::string step_fields(const StepReport& step, const StepSample& sample, const EngineCounters& before,
                        const EngineCounters& after);

}  // namespace transload
