// Whether bytes are still what they were: xxh3-64, never 0 (0 stands for "nothing known").
#pragma once

#include <cstddef>
#include <cstdint>

namespace transload::kernels {

std::uint64_t content_hash(const void* data, std::size_t bytes);

}  // namespace transload::kernels
