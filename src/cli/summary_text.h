// The text at the end of a run, from its summary.json (keys: docs/formats.md).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "train/trainer.h"

namespace transload::cli {

std::string summary_text(const nlohmann::json& summary, const TrainOptions& options);

}  // namespace transload::cli
