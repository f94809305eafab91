#include "cli/summary_text.h"

namespace transload::cli {

std::string summary_text(const nlohmann::json& summary, const TrainOptions& options) { return summary.dump(1) + "\n"; }

}  // namespace transload::cli
