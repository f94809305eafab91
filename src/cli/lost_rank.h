// A note in the run folder on the rank that was lost, for whoever starts the run again.
#pragma once

#include <string>

namespace transload::cli {

/// Every rank that is left writes the same; one of the notes stays. Failures are left alone: the error is being
/// printed.
void keep_lost_rank(const std::string& run, const std::string& what) noexcept;
/// The note, once; empty where there is none.
std::string take_lost_rank(const std::string& run);

}  // namespace transload::cli
