#include "optim/tensor_device.h"

#include <fmt/format.h>

#include "base/error.h"

namespace transload {
namespace {

TensorDeviceKind announced;

}  // namespace

void announce_tensor_devices(const TensorDeviceKind& kind) { announced = kind; }

std::string tensor_device_unavailable() {
  return announced.unavailable == nullptr ? "this build of Transload has no CUDA (build it where nvcc is found)"
                                          : announced.unavailable();
}

std::unique_ptr<TensorDevice> open_tensor_device(int number) {
  const std::string reason = tensor_device_unavailable();
  if (!reason.empty())
    throw InputError(fmt::format("Tensors on CUDA device {} cannot be stepped: {}.", number, reason));
  return announced.open(number);
}

}  // namespace transload
