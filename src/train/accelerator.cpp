#include "train/accelerator.h"

#include "base/error.h"

namespace transload {
namespace {

AcceleratorKind announced;

}  // namespace

void announce_accelerators(const AcceleratorKind& kind) { announced = kind; }

std::unique_ptr<Accelerator> open_accelerator(int local_rank) {
  if (announced.open != nullptr) return announced.open(local_rank);
  throw InputError(
      "--device cuda: this build has no CUDA. Build it where nvcc is found, or say --device cpu or emulated.");
}

AcceleratorLinks measure_accelerator(int ordinal) {
  if (announced.measure == nullptr) throw InputError("This build has no CUDA.");
  return announced.measure(ordinal);
}

std::unique_ptr<Communicator> connect_accelerators(const Launch& launch, const CommOptions& options) {
  return announced.connect != nullptr ? announced.connect(launch, options) : make_communicator(launch, options);
}

std::vector<AcceleratorFacts> list_accelerators(std::string* reason) {
  if (announced.list != nullptr) return announced.list(reason);
  *reason = "this build has no CUDA";
  return {};
}

}  // namespace transload
