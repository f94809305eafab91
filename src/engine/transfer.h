// One transfer of a block over a link. Pooled: its slices are sized at construction, nothing is allocated later.
#pragma once

#include <vector>

#include "engine/engine_impl.h"

namespace transload {

struct Engine::Impl::Transfer final : Completion {
  explicit Transfer(Impl& e, std::size_t max_slices) : engine(e) { slices.reserve(max_slices); }
  void done(const IoResult& result) noexcept override { engine.finished(*this, result); }
  /// The runs of a copy's frames, as the store and the copy streams take them.
  void set_slices(const BlockView& view) {
    slices.clear();
    view.for_each_run(0, view.bytes(), [&](std::byte* data, std::uint64_t, std::uint64_t n) {
      slices.push_back({data, n});
    });
  }

  Impl& engine;
  BlockId block;
  Link link = Link::nvme_read;
  SlotId slot;
  std::uint64_t version = 0;
  BlockView from, to;  ///< of copies between device and host
  TaskTimes times;     ///< of a copy
  bool ahead = false;
  std::exception_ptr copy_error;
  std::vector<IoSlice> slices;
};

}  // namespace transload
