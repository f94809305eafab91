// CUDA's results as errors: operation, what on, and what the runtime says.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace transload::cuda {

/// "CUDA refused <operation> (<what>): …"
std::string refusal(cudaError_t result, const char* operation, const std::string& what);

/// Throws IoError unless `result` is success. `operation`: the call's name; `what`: stream, block or size.
void check(cudaError_t result, const char* operation, const std::string& what);

}  // namespace transload::cuda
