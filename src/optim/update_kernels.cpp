#include "optim/update_kernels.h"

#include <tbb/parallel_for.h>

namespace transload {
namespace {

constexpr std::uint64_t kGrain = 16 * kTile;  ///< elements a task

class CpuUpdateKernels final : public UpdateKernels {
 public:
  void update(const ChunkUpdate& update) override {
    tbb::parallel_for(std::uint64_t{0}, (update.elements + kGrain - 1) / kGrain, [&](std::uint64_t t) {
      update.for_each_run(t * kGrain, std::min((t + 1) * kGrain, update.elements),
                          [&](const kernels::AdamwRun& run, std::int64_t n, const kernels::AdamwCoefficients& c) {
                            kernels::adamw(run, n, c, update.gradient_scale);
                          });
    });
  }
};

}  // namespace

std::unique_ptr<UpdateKernels> make_cpu_update_kernels() { return std::make_unique<CpuUpdateKernels>(); }

}  // namespace transload
