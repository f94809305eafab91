#include "kernels/cuda/checks.h"

#include "base/check.h"

namespace transload::kernels::cuda {

void check_run(const AdamwRun& run, std::int64_t n) {
  TRANSLOAD_CHECK(n >= 0, "n = {}", n);
  TRANSLOAD_CHECK((run.weight && run.residue) != (run.weight_f32 != nullptr), "weight {} residue {} weight_f32 {}",
                  run.weight != nullptr, run.residue != nullptr, run.weight_f32 != nullptr);
  TRANSLOAD_CHECK((run.gradient != nullptr) != (run.gradient_f32 != nullptr), "gradient {} gradient_f32 {}",
                  run.gradient != nullptr, run.gradient_f32 != nullptr);
  TRANSLOAD_CHECK(run.moment1 && run.moment2, "moment1 {} moment2 {}", run.moment1 != nullptr, run.moment2 != nullptr);
}

}  // namespace transload::kernels::cuda
