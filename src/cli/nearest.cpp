#include "cli/nearest.h"

#include <fmt/format.h>

#include <algorithm>

namespace transload::cli {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i)
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = d[i - 1][j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

std::string nearest_name(std::string_view unknown, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = SIZE_MAX;
  for (const std::string& name : known) {
    const std::size_t distance = edit_distance(unknown, name);
    const std::size_t near = std::max<std::size_t>(2, name.size() / 3);
    // "memory" means "host-memory": a part of a name is near as well.
    const bool part = unknown.size() >= 4 && name.find(unknown) != std::string::npos;
    if (distance > near && !part) continue;
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view unknown, const std::vector<std::string>& known, std::string_view prefix) {
  const std::string name = nearest_name(unknown, known);
  return name.empty() ? "" : fmt::format(" Did you mean {}{}?", prefix, name);
}

}  // namespace transload::cli
