// The CUDA accelerator of a program: announce it at the start of main().
#pragma once

namespace transload::cuda {

void announce();

}  // namespace transload::cuda
