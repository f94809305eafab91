#include "cli/commands.h"

#ifdef TRANSLOAD_HAVE_CUDA
#include "train/cuda/cuda_accelerator.h"
#endif

int main(int argc, char** argv) {
#ifdef TRANSLOAD_HAVE_CUDA
  transload::cuda::announce();
#endif
  return transload::cli::transload_main(argc, argv);
}
