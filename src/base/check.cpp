#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace transload {

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  std::fprintf(stderr, "transload: bug: %s:%d: check failed: %s: %s\n", file, line, condition, message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace transload
