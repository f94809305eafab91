#include "kernels/cuda/adamw.cuh"

#include "kernels/cuda/checks.h"
#include "kernels/cuda/kernels.h"

namespace transload::kernels::cuda {
namespace {

template <class Master, class G>
void start(const Master& master, const G* gradient, const AdamwRun& run, std::int64_t n, const AdamwCoefficients& c,
           float gradient_scale, cudaStream_t stream) {
  const Span span = span_of(n, {operand(run.weight), operand(run.residue), operand(run.weight_f32),
                                operand(run.moment1), operand(run.moment2), operand(gradient)});
  const Adamw<Master, G> op{master, run.moment1, run.moment2, gradient, c, gradient_scale};
  launch_elementwise("adamw", op, span, stream);
}

template <class G>
void start(const G* gradient, const AdamwRun& run, std::int64_t n, const AdamwCoefficients& c, float gradient_scale,
           cudaStream_t stream) {
  if (run.weight_f32 != nullptr) {
    start(MasterF32{run.weight_f32}, gradient, run, n, c, gradient_scale, stream);
  } else {
    start(MasterSplit{run.weight, run.residue}, gradient, run, n, c, gradient_scale, stream);
  }
}

}  // namespace

void adamw(const AdamwRun& run, std::int64_t n, const AdamwCoefficients& c, float gradient_scale, cudaStream_t stream) {
  if (n == 0) return;
  check_run(run, n);
  if (run.gradient != nullptr) {
    start(run.gradient, run, n, c, gradient_scale, stream);
  } else {
    start(run.gradient_f32, run, n, c, gradient_scale, stream);
  }
}

}  // namespace transload::kernels::cuda
