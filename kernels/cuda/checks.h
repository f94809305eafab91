// Checks of what the host hands to kernels, in files of their own: nvcc need not read fmt.
#pragma once

#include <cstdint>

#include "kernels/cpu/adamw.h"

namespace transload::kernels::cuda {

/// A bug of the caller's (base/check.h) where planes contradict each other.
void check_run(const AdamwRun& run, std::int64_t n);

}  // namespace transload::kernels::cuda
