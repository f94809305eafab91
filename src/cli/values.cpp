#include "cli/values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "cli/nearest.h"

namespace transload::cli {
namespace {

/// The number at the start of `text`, and what follows it.
bool read_number(const std::string& text, double& value, std::string& rest) {
  if (text.empty() || !(std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '.' || text[0] == '-'))
    return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !std::isfinite(value)) return false;
  rest.assign(end, text.data() + text.size());
  return true;
}

}  // namespace

std::uint64_t parse_count(const std::string& text, const std::string& what, std::uint64_t least) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size() || value < least)
    throw InputError(fmt::format("{} must be a whole number of at least {}, not \"{}\".", what, least, text));
  return value;
}

double parse_number(const std::string& text, const std::string& what, double least, double most) {
  double value = 0;
  std::string rest;
  if (!read_number(text, value, rest) || !rest.empty() || value < least || value > most) {
    const std::string range = most == std::numeric_limits<double>::max()
                                  ? fmt::format("a number of at least {}", least)
                                  : fmt::format("a number from {} to {}", least, most);
    throw InputError(fmt::format("{} must be {}, not \"{}\".", what, range, text));
  }
  return value;
}

std::pair<double, double> parse_betas(const std::string& text, const std::string& what) {
  const std::size_t comma = text.find(',');
  if (comma == std::string::npos)
    throw InputError(fmt::format("{} must be two numbers with a comma, such as 0.9,0.95, not \"{}\".", what, text));
  const double below_one = std::nextafter(1.0, 0.0);
  const auto number = [&](std::string part) {
    part.erase(0, part.find_first_not_of(' '));
    double value = 0;
    std::string rest;
    if (!read_number(part, value, rest) || !rest.empty() || value < 0 || value > below_one)
      throw InputError(
          fmt::format("{} must be two numbers from 0 to below 1, such as 0.9,0.95, not \"{}\".", what, text));
    return value;
  };
  return {number(text.substr(0, comma)), number(text.substr(comma + 1))};
}

namespace {

/// Seconds of "30s", "5min", "1h"; 0: not a time above 0.
double seconds_of(const std::string& text) {
  double value = 0;
  std::string unit;
  if (!read_number(text, value, unit) || value <= 0) return 0;
  const double seconds = value * (unit == "s" ? 1 : unit == "min" ? 60 : unit == "h" ? 3600 : 0);
  return std::isfinite(seconds) ? seconds : 0;
}

}  // namespace

double parse_duration(const std::string& text, const std::string& what) {
  const double seconds = seconds_of(text);
  if (seconds > 0) return seconds;
  throw InputError(fmt::format("{} must be a time, such as 30s, 5min or 1h, not \"{}\".", what, text));
}

CommitEvery parse_commit_every(const std::string& text, const std::string& what) {
  if (const double seconds = seconds_of(text); seconds > 0) return {.steps = 0, .seconds = seconds};
  double value = 0;
  std::string unit;
  if (read_number(text, value, unit) && value > 0 && unit.empty() && value == std::floor(value))
    return {.steps = parse_count(text, what, 1), .seconds = 0};
  throw InputError(fmt::format(
      "{} must be a number of steps, such as 20, or a time, such as 30s, 5min or 1h, not \"{}\".", what, text));
}

std::size_t parse_choice(const std::string& text, const std::string& what, const std::vector<std::string>& choices) {
  const auto found = std::find(choices.begin(), choices.end(), text);
  if (found == choices.end())
    throw InputError(fmt::format("{} must be one of {}, not \"{}\".{}", what, fmt::join(choices, ", "), text,
                                 did_you_mean(text, choices, "")));
  return static_cast<std::size_t>(found - choices.begin());
}

}  // namespace transload::cli
