// The kernels of a step on a GPU. Pointers given to them are device memory, ids and tables host memory that was
// announced by mirror(): they have a copy on the device.
#pragma once

#include <memory>

#include "optim/gradient_kernels.h"
#include "optim/update_kernels.h"
#include "train/cuda/cuda_context.h"
#include "train/step_kernels.h"

namespace transload::cuda {

/// Takes device memory in the first task that needs some, not before.
std::unique_ptr<StepKernels> make_cuda_kernels(Dtype dtype, std::shared_ptr<CudaContext> context);
/// In `stream`; null: the compute stream.
std::shared_ptr<GradientKernels> make_cuda_gradient_kernels(std::shared_ptr<CudaContext> context,
                                                            CudaStream* stream = nullptr);
std::shared_ptr<UpdateKernels> make_cuda_update_kernels(std::shared_ptr<CudaContext> context);

}  // namespace transload::cuda
