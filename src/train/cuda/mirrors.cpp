#include "train/cuda/mirrors.h"

#include <cstring>

#include "base/check.h"

namespace transload::cuda {

void Mirrors::update(const void* host, std::uint64_t bytes) {
  Mirror& mirror = mirrors_[reinterpret_cast<std::uintptr_t>(host)];
  if (!mirror.copy.taken()) mirror.copy = CudaBuffer(context_, bytes, true);
  TRANSLOAD_CHECK(mirror.copy.bytes() == bytes, "{} bytes of a mirror of {}", bytes, mirror.copy.bytes());
  std::memcpy(mirror.copy.host(), host, bytes);
  mirror.copy.to_device(context_.stream());
  ++mirror.version;
}

std::pair<Mirrors::Mirror*, std::uint64_t> Mirrors::at(const void* host) {
  const auto address = reinterpret_cast<std::uintptr_t>(host);
  auto found = mirrors_.upper_bound(address);
  TRANSLOAD_CHECK(found != mirrors_.begin(), "{} was not mirrored", host);
  --found;
  const std::uint64_t offset = address - found->first;
  TRANSLOAD_CHECK(offset < found->second.copy.bytes(), "{} was not mirrored", host);
  return {&found->second, offset};
}

kernels::cuda::EmbeddingIndex Mirrors::index(const std::int32_t* ids, std::int64_t count) {
  const auto [mirror, offset] = at(ids);
  Index& index = mirror->indexes[{offset, count}];
  if (!index.buffer.taken())
    index.buffer = CudaBuffer(context_, 2 * static_cast<std::uint64_t>(count) * sizeof(std::int32_t), true);
  if (index.version != mirror->version) {
    auto* const tokens = index.buffer.host<std::int32_t>();
    const auto* own = reinterpret_cast<const std::int32_t*>(mirror->copy.host() + offset);
    kernels::cuda::embedding_index(own, count, tokens, tokens + count);
    index.buffer.to_device(context_.stream());
    index.version = mirror->version;
  }
  const auto* const tokens = index.buffer.device<std::int32_t>();
  return {tokens, tokens + count};
}

}  // namespace transload::cuda
