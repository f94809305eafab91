#include "base/size.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <optional>

#include "base/error.h"

namespace transload {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<Unit, 13> kUnits = {{{"B", 1},
                                          {"KiB", KiB},
                                          {"MiB", MiB},
                                          {"GiB", GiB},
                                          {"TiB", 1024 * GiB},
                                          {"PiB", 1024 * 1024 * GiB},
                                          {"kB", 1000},
                                          {"KB", 1000},
                                          {"MB", 1000 * 1000},
                                          {"GB", 1000ull * 1000 * 1000},
                                          {"TB", 1000ull * 1000 * 1000 * 1000},
                                          {"PB", 1000ull * 1000 * 1000 * 1000 * 1000},
                                          {"", 1}}};

std::optional<std::uint64_t> unit_bytes(std::string_view name) {
  for (const Unit& unit : kUnits) {
    if (unit.name == name) return unit.bytes;
  }
  return std::nullopt;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// "12.5GiB" taken apart: 12, 5/10, GiB. Integers, so that no size is rounded through a double.
struct Written {
  unsigned __int128 whole = 0;
  std::uint64_t fraction = 0, scale = 1;  // scale = 10^decimals
  std::string_view unit;
};

std::optional<Written> take_apart(std::string_view text) {
  Written w;
  std::size_t i = 0;
  for (; i < text.size() && is_digit(text[i]); ++i) {
    if (i >= 20) return std::nullopt;
    w.whole = w.whole * 10 + static_cast<unsigned>(text[i] - '0');
  }
  if (i == 0) return std::nullopt;
  if (i < text.size() && text[i] == '.') {
    const std::size_t first = ++i;
    for (; i < text.size() && is_digit(text[i]); ++i) {
      if (i - first >= 9) return std::nullopt;
      w.fraction = w.fraction * 10 + static_cast<unsigned>(text[i] - '0');
      w.scale *= 10;
    }
    if (i == first) return std::nullopt;
  }
  if (i + 1 < text.size() && text[i] == ' ') ++i;  // "640.0 MiB", as format_size writes it
  w.unit = text.substr(i);
  return w;
}

std::string in_units(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kNames = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  constexpr std::array<int, 5> kDecimals = {1, 1, 2, 2, 2};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t i = 0;
  for (; i + 1 < kNames.size(); ++i) {
    const double grain = kDecimals[i] == 1 ? 10 : 100;
    if (std::round(value * grain) / grain < 1024) break;
    value /= 1024;
  }
  return fmt::format("{:.{}f} {}", value, kDecimals[i], kNames[i]);
}

}  // namespace

std::uint64_t parse_size(std::string_view text, std::string_view what) {
  const auto refuse = [&](std::string_view why) -> InputError {
    return InputError(
        fmt::format("{}: \"{}\" {}. Write a size as 24GiB, 512MiB, 1.5GB (10^9) or 4096 (bytes).", what, text, why));
  };
  const std::optional<Written> w = take_apart(text);
  const std::optional<std::uint64_t> unit = w ? unit_bytes(w->unit) : std::nullopt;
  if (!unit) throw refuse("is not a size");
  if (*unit == 1 && w->scale != 1) throw refuse("is not a whole number of bytes");
  const unsigned __int128 bytes = w->whole * *unit + static_cast<unsigned __int128>(w->fraction) * *unit / w->scale;
  if (bytes > UINT64_MAX) throw refuse("is too large");
  return static_cast<std::uint64_t>(bytes);
}

double parse_rate(std::string_view text, std::string_view what) {
  const auto refuse = [&](std::string_view why) {
    return InputError(
        fmt::format("{}: \"{}\" {}. Write a rate as 6GB/s (10^9 bytes a second) or 3.5GiB/s.", what, text, why));
  };
  if (text.size() < 2 || text.substr(text.size() - 2) != "/s") throw refuse("is not a rate");
  const std::optional<Written> w = take_apart(text.substr(0, text.size() - 2));
  const std::optional<std::uint64_t> unit = w && !w->unit.empty() ? unit_bytes(w->unit) : std::nullopt;
  if (!unit) throw refuse("is not a rate");
  if (w->whole == 0 && w->fraction == 0) throw refuse("is not above zero");
  const double value = static_cast<double>(w->whole) + static_cast<double>(w->fraction) / static_cast<double>(w->scale);
  return value * static_cast<double>(*unit);
}

std::string format_size(std::uint64_t bytes) { return bytes < KiB ? fmt::format("{} B", bytes) : in_units(bytes); }

std::pair<std::string, std::string> format_sizes(std::uint64_t a, std::uint64_t b) {
  std::pair<std::string, std::string> texts{format_size(a), format_size(b)};
  if (a != b && texts.first == texts.second) texts = {fmt::format("{} bytes", a), fmt::format("{} bytes", b)};
  return texts;
}

std::string format_rate(double bytes_per_s) {
  constexpr std::array<std::string_view, 4> kNames = {"B/s", "kB/s", "MB/s", "GB/s"};
  if (!(bytes_per_s >= 0) || std::isinf(bytes_per_s)) return "unknown";
  std::size_t i = 0;
  while (i + 1 < kNames.size() && std::round(bytes_per_s * 100) / 100 >= 1000) {
    bytes_per_s /= 1000;
    ++i;
  }
  return fmt::format("{:.2f} {}", bytes_per_s, kNames[i]);
}

std::string format_duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e15) return "unknown";
  if (std::round(seconds * 1000) < 1000) {
    return seconds < 0.001 ? fmt::format("{:.2g} ms", seconds * 1000) : fmt::format("{:.0f} ms", seconds * 1000);
  }
  if (std::round(seconds * 10) < 600) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::uint64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  const std::uint64_t minutes = (whole + 30) / 60;
  return fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
}

}  // namespace transload
