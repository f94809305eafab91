#include "train/accelerator.h"

#include "base/error.h"

namespace transload {
namespace {

AcceleratorKind announced;

}  // namespace

void announce_accelerators(const AcceleratorKind& kind) { announced = kind; }

std::unique_ptr<Accelerator> open_accelerator() {
  if (announced.open != nullptr) return announced.open();
  throw InputError(
      "--device cuda: this build has no CUDA. Build it where nvcc is found, or say --device cpu or emulated.");
}

AcceleratorLinks measure_accelerator(int ordinal) {
  if (announced.measure == nullptr) throw InputError("This build has no CUDA.");
  return announced.measure(ordinal);
}

std::vector<AcceleratorFacts> list_accelerators(std::string* reason) {
  if (announced.list != nullptr) return announced.list(reason);
  *reason = "this build has no CUDA";
  return {};
}

}  // namespace transload
