// The nearest known name for one that is not known, so that a typing error is answered with what was meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace transload::cli {

/// Insertions, deletions, substitutions and swaps of neighbours that turn one into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);
/// The known name with the least distance; empty where none is near (more than a third of its letters differ).
std::string nearest_name(std::string_view unknown, const std::vector<std::string>& known);
/// " Did you mean --steps?" or "".
std::string did_you_mean(std::string_view unknown, const std::vector<std::string>& known, std::string_view prefix);

}  // namespace transload::cli
