// A run's last commit, array by array, element by element, whatever the number of ranks whose stores hold it. Memory: a
// few blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "chunk/layout.h"
#include "offload/store.h"
#include "train/checkpoint.h"
#include "train/group_reader.h"

namespace transload {

class CommittedState {
 public:
  enum class Array : std::uint8_t {
    weight,   ///< in the training dtype
    master,   ///< fp32
    moment1,  ///< fp32
    moment2,  ///< fp32
  };

  /// DamageError: a manifest that contradicts itself, or the others of its group. Where some rank broadcasts, all ranks
  /// of the run call stream and verify together.
  CommittedState(GroupView view, Progress progress);

  const CheckpointMeta& meta() const { return view_.meta; }
  const Layout& layout() const { return layout_; }
  Dtype dtype_of(Array array) const { return array == Array::weight ? view_.meta.dtype : Dtype::f32; }

  /// Parameters in an order in which their elements can be streamed: the trainable ones first, since these and the
  /// frozen ones have chunks of their own.
  std::vector<ParamId> stream_order() const;
  /// Calls fn(parameter, first element, count, data of dtype_of(array)) for all elements of all parameters that have
  /// the array, in stream_order, ascending. Throws what is wrong with a block.
  using Elements = std::function<void(ParamId, std::uint64_t begin, std::uint64_t count, const std::byte* data)>;
  void stream(Array array, const Elements& fn);

  /// Reads every block; one line for each that is damaged.
  std::vector<std::string> verify();

  /// Says for the progress that these arrays will be streamed.
  void expect(const std::vector<Array>& arrays);

 private:
  using Requests = std::vector<GroupReader::Request>;
  /// Blocks that an array is made of, in stream order; a bf16 weight comes before its residue.
  Requests blocks_of(Array array) const;
  void check_store(const Store& store, std::uint32_t rank) const;
  void count(const RankBlock& block);

  GroupView view_;
  Layout layout_;  // of some rank: blocks are numbered alike on all of them
  Progress progress_;
  std::uint64_t done_bytes_ = 0, total_bytes_ = 0;
};

/// InputError or DamageError where a manifest's layout makes no sense.
Layout layout_of(const CheckpointMeta& meta, const std::string& where);

}  // namespace transload
