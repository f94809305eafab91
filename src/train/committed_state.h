// A run's last commit, array by array, element by element. Memory: a few blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "chunk/layout.h"
#include "offload/store.h"
#include "train/block_reader.h"
#include "train/checkpoint.h"

namespace transload {

class CommittedState {
 public:
  enum class Array : std::uint8_t {
    weight,   ///< in the training dtype
    master,   ///< fp32
    moment1,  ///< fp32
    moment2,  ///< fp32
  };

  /// `where` names the store in messages. DamageError: a manifest that contradicts itself.
  CommittedState(Store& store, const std::string& where, Progress progress);

  const CheckpointMeta& meta() const { return meta_; }
  const Layout& layout() const { return layout_; }
  Dtype dtype_of(Array array) const { return array == Array::weight ? meta_.dtype : Dtype::f32; }

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
  /// Blocks that an array is made of, in stream order; a bf16 weight comes before its residue.
  std::vector<BlockId> blocks_of(Array array) const;
  void check_blocks(const std::string& where) const;
  void count(BlockId block);

  Store& store_;
  CheckpointMeta meta_;
  Layout layout_;
  Progress progress_;
  std::uint64_t done_bytes_ = 0, total_bytes_ = 0;
};

/// The store of a run, opened for reading.
std::unique_ptr<Store> open_run(const std::string& run);

}  // namespace transload
