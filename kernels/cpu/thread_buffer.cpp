#include <array>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "kernels/cpu/tile.h"

namespace transload::kernels {
namespace {

struct Free {
  void operator()(float* p) const { std::free(p); }
};
struct Buffer {
  std::unique_ptr<float, Free> data;
  std::int64_t count = 0;
};

}  // namespace

float* thread_buffer(int slot, std::int64_t count) {
  thread_local std::array<Buffer, 4> buffers;
  Buffer& buffer = buffers[static_cast<std::size_t>(slot)];
  if (buffer.count < count) {
    const std::int64_t rounded = (count + 15) / 16 * 16;
    buffer.data.reset();
    buffer.data.reset(static_cast<float*>(std::aligned_alloc(64, static_cast<std::size_t>(rounded) * sizeof(float))));
    buffer.count = buffer.data == nullptr ? 0 : rounded;
    if (buffer.data == nullptr) throw std::bad_alloc();
  }
  return buffer.data.get();
}

}  // namespace transload::kernels
