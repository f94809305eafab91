// Stands where the toolkit's cuda_runtime.h would be: this folder comes first on a test's include path, and kernels are
// compiled by the C++ compiler.
#pragma once

#define TRANSLOAD_CUDA_STAND_IN 1

#include "cuda_runtime_api.h"
#include "types.h"
// After the types.
#include "fibers.h"
#include "intrinsics.h"
#include "runtime.h"
