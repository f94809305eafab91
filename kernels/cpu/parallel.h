// Loops over blocks of a fixed size: which elements a block holds never depends on the number of threads.
#pragma once

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <cstdint>

namespace transload::kernels {

/// fn(index) for each of `count` tasks, in the caller's arena.
template <class Fn>
void parallel_tasks(std::int64_t count, const Fn& fn) {
  if (count <= 1) {
    if (count == 1) fn(std::int64_t{0});
    return;
  }
  tbb::parallel_for(
      tbb::blocked_range<std::int64_t>(0, count, 1),
      [&](const tbb::blocked_range<std::int64_t>& range) {
        for (std::int64_t i = range.begin(); i < range.end(); ++i) fn(i);
      },
      tbb::simple_partitioner());
}

/// fn(begin, end) for blocks of `block` of [0, n).
template <class Fn>
void parallel_blocks(std::int64_t n, std::int64_t block, const Fn& fn) {
  parallel_tasks((n + block - 1) / block, [&](std::int64_t i) { fn(i * block, std::min(n, (i + 1) * block)); });
}

/// Rows of `width` elements in one block of about `elements` elements; at least one.
inline std::int64_t rows_in_block(std::int64_t width, std::int64_t elements) {
  return std::max<std::int64_t>(1, elements / std::max<std::int64_t>(1, width));
}

}  // namespace transload::kernels
