// Mirrors: copies on the device of host arrays that kernels are given pointers into (token ids, targets, rotary
// tables), and of the sorted index that a deterministic embedding backward needs of its ids.
#pragma once

#include <map>
#include <utility>

#include "kernels/cuda/kernels.h"
#include "train/cuda/cuda_context.h"

namespace transload::cuda {

class Mirrors {
 public:
  explicit Mirrors(CudaContext& context) : context_(context) {}

  /// New content of [host, host + bytes). Copies issued for the content before must have ended.
  void update(const void* host, std::uint64_t bytes);
  /// Where the device has what lies at `host`.
  template <class T>
  const T* find(const T* host) {
    const auto [mirror, offset] = at(host);
    return reinterpret_cast<const T*>(mirror->copy.device() + offset);
  }
  /// The index of `count` ids from `ids` on; made when first asked for after an update.
  kernels::cuda::EmbeddingIndex index(const std::int32_t* ids, std::int64_t count);

 private:
  struct Index {
    CudaBuffer buffer;  // token numbers, then ids
    std::uint64_t version = 0;
  };
  struct Mirror {
    CudaBuffer copy;
    std::uint64_t version = 0;
    std::map<std::pair<std::uint64_t, std::int64_t>, Index> indexes;  // by offset and count
  };
  std::pair<Mirror*, std::uint64_t> at(const void* host);

  CudaContext& context_;
  std::map<std::uintptr_t, Mirror> mirrors_;  // by host address
};

}  // namespace transload::cuda
