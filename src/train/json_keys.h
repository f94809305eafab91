// A JSON object's keys by type, each error naming file and key. `null` counts as absent.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"

namespace transload {

class JsonKeys {
 public:
  JsonKeys(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  [[noreturn]] void refuse(const std::string& sentence) const {
    throw InputError(fmt::format("{}: {}", where_, sentence));
  }
  bool has(const char* key) const {
    const auto found = object_.find(key);
    return found != object_.end() && !found->is_null();
  }
  const nlohmann::json& at(const char* key) const {
    if (!has(key)) refuse(fmt::format("\"{}\" is missing.", key));
    return object_[key];
  }
  /// 1 … 2³¹ − 1: sizes of a model, so that products of two fit in 64 bits.
  std::int64_t size(const char* key) const {
    const nlohmann::json& value = at(key);
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (!value.is_number_integer() || value < 1 || value > kMost)
      refuse(fmt::format("\"{}\" is {}, but must be a whole number between 1 and {}.", key, value.dump(), kMost));
    return value.get<std::int64_t>();
  }
  std::int64_t size(const char* key, std::int64_t otherwise) const { return has(key) ? size(key) : otherwise; }
  std::uint64_t count(const char* key) const {
    const nlohmann::json& value = at(key);
    if (!value.is_number_unsigned()) refuse(fmt::format("\"{}\" is {}, but must be a count.", key, value.dump()));
    return value.get<std::uint64_t>();
  }
  void require_format(std::uint64_t known) const {
    if (count("format") != known)
      refuse(fmt::format("its format is {}; this program reads {}.", count("format"), known));
  }
  double number(const char* key) const {
    const nlohmann::json& value = at(key);
    if (!value.is_number()) refuse(fmt::format("\"{}\" is {}, but must be a number.", key, value.dump()));
    return value.get<double>();
  }
  double number(const char* key, double otherwise) const { return has(key) ? number(key) : otherwise; }
  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!at(key).is_boolean()) refuse(fmt::format("\"{}\" is {}, but must be true or false.", key, at(key).dump()));
    return at(key).get<bool>();
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) refuse(fmt::format("\"{}\" is {}, but must be a text.", key, at(key).dump()));
    return at(key).get<std::string>();
  }
  std::string text(const char* key, const std::string& otherwise) const { return has(key) ? text(key) : otherwise; }
  JsonKeys object(const char* key) const {
    if (!at(key).is_object()) refuse(fmt::format("\"{}\" is {}, but must be an object.", key, at(key).dump()));
    return {at(key), fmt::format("{}, {}", where_, key)};
  }
  const nlohmann::json& json() const { return object_; }

 private:
  const nlohmann::json& object_;
  std::string where_;
};

/// InputError where the text is no JSON object.
inline nlohmann::json parse_json_object(const std::string& text, const std::string& where) {
  nlohmann::json parsed = nlohmann::json::parse(text, nullptr, false);
  if (parsed.is_discarded()) throw InputError(fmt::format("{}: this is not valid JSON.", where));
  if (!parsed.is_object()) throw InputError(fmt::format("{}: a JSON object was expected at the top.", where));
  return parsed;
}

}  // namespace transload
