// CUDA devices for the drop-in optimizer's tensors (optim/tensor_device.h): announce them at the start of a program.
#pragma once

namespace transload::cuda {

void announce_tensors();

}  // namespace transload::cuda
