// Sizes, rates and durations as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace transload {

inline constexpr std::uint64_t KiB = 1024, MiB = 1024 * KiB, GiB = 1024 * MiB;

/// "24GiB", "512MiB", "1.5GB" (10⁹), "4096" (bytes), "0". Refuses "1g", "-1", "x", overflow: InputError naming `what`.
std::uint64_t parse_size(std::string_view text, std::string_view what);
/// "6GB/s", "3.5GiB/s" → bytes a second, > 0. InputError otherwise.
double parse_rate(std::string_view text, std::string_view what);
/// "640.0 MiB", "1.50 GiB", "12 B": for people.
std::string format_size(std::uint64_t bytes);
/// Two sizes that a message sets against each other: as format_size writes them, or in bytes where that hides that they
/// differ.
std::pair<std::string, std::string> format_sizes(std::uint64_t a, std::uint64_t b);
/// "3.31 GB/s".
std::string format_rate(double bytes_per_s);
/// "1 h 02 min", "3 min 20 s", "4.2 s", "310 ms".
std::string format_duration(double seconds);

constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
constexpr std::uint64_t ceil_div(std::uint64_t n, std::uint64_t d) { return (n + d - 1) / d; }

}  // namespace transload
