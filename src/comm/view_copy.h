// Copies between parts of views, frame by frame; nothing where both are the same bytes.
#pragma once

#include "base/block_view.h"

namespace transload {

inline void copy_part(const BlockView& from, std::uint64_t from_offset, const BlockView& to, std::uint64_t to_offset,
                      std::uint64_t bytes) {
  from.for_each_run(from_offset, from_offset + bytes,
                    [&](const std::byte* data, std::uint64_t offset, std::uint64_t n) {
                      const std::uint64_t begin = to_offset + (offset - from_offset);
                      to.for_each_run(begin, begin + n, [&](std::byte* there, std::uint64_t at, std::uint64_t m) {
                        if (there != data + (at - begin)) std::memcpy(there, data + (at - begin), m);
                      });
                    });
}

}  // namespace transload
