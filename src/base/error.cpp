#include "base/error.h"

#include <fmt/format.h>

#include <cstring>

namespace transload {

static std::string sentence(const IoError::Details& d) {
  std::string text = fmt::format("{} failed on {}", d.operation, d.path);
  if (!d.block.empty()) text += fmt::format(" ({})", d.block);
  if (d.wanted != 0) text += fmt::format(": at offset {} wanted {} bytes, got {}", d.offset, d.wanted, d.got);
  if (d.error != 0) text += fmt::format(": {}", std::strerror(d.error));
  if (!d.advice.empty()) text += fmt::format(". {}", d.advice);
  return text;
}

IoError::IoError(Details d) : Error(sentence(d)), details_(std::move(d)) {}

}  // namespace transload
