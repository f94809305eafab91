// UpdateKernels on a GPU: kernels/cuda over the runs of blocks, all arguments by value in each launch.
#include "kernels/cuda/kernels.h"
#include "train/cuda/cuda_kernels.h"

namespace transload::cuda {
namespace {

class CudaUpdates final : public UpdateKernels {
 public:
  explicit CudaUpdates(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}
  void update(const ChunkUpdate& update) override {
    update.for_each_run(0, update.elements,
                        [&](const kernels::AdamwRun& run, std::int64_t n, const kernels::AdamwCoefficients& c) {
                          kernels::cuda::adamw(run, n, c, update.gradient_scale, context_->stream());
                        });
  }

 private:
  std::shared_ptr<CudaContext> context_;
};

}  // namespace

std::shared_ptr<UpdateKernels> make_cuda_update_kernels(std::shared_ptr<CudaContext> context) {
  return std::make_shared<CudaUpdates>(std::move(context));
}

}  // namespace transload::cuda
