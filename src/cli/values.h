// Values as people write them on the command line and in TOML: counts, numbers, choices, times. All throw InputError
// naming `what` (a flag, or a key and its file). Sizes and rates are base/size.h's.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "train/trainer.h"

namespace transload::cli {

/// A whole number of at least `least`.
std::uint64_t parse_count(const std::string& text, const std::string& what, std::uint64_t least);
/// A finite number in [least, most].
double parse_number(const std::string& text, const std::string& what, double least, double most);
/// "0.9,0.95": two numbers in [0, 1).
std::pair<double, double> parse_betas(const std::string& text, const std::string& what);
/// "20" (steps), "30s", "5min", "1h".
CommitEvery parse_commit_every(const std::string& text, const std::string& what);
/// "30s", "5min", "1h" in seconds, above 0.
double parse_duration(const std::string& text, const std::string& what);
/// The index of `text` among `choices`.
std::size_t parse_choice(const std::string& text, const std::string& what, const std::vector<std::string>& choices);

}  // namespace transload::cli
