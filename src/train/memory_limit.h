// The seam of memory_limit(): the same reading of /proc and /sys below another root, for tests.
#pragma once

#include <string>

#include "train/trainer.h"

namespace transload {

MemoryLimit memory_limit_of(const std::string& root);

}  // namespace transload
