// TRANSLOAD_CHECK(condition, "format", values…): always on; a failure is a bug of ours, prints values and aborts.
#pragma once

#include <fmt/format.h>

#include <string>

namespace transload {
[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& message);
}

#define TRANSLOAD_CHECK(condition, ...)                                                      \
  do {                                                                                       \
    if (!(condition)) [[unlikely]]                                                           \
      ::transload::check_failed(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
  } while (false)
