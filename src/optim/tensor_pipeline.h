// TensorPipeline: the part of a step that goes over tensors on a device. Staged chunks pass through three slots of
// memory of the host: while the CPU updates one, the next is on its way down and the one before on its way up. Resident
// chunks are updated by kernels in the caller's stream meanwhile.
//
// Owns the device's streams, the staging, and the arena where the caller gave none. The state must outlive it.
// Threading: one caller at a time. After an error in a step: finish(), then nothing but the destructor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/block_access.h"
#include "optim/tensor_state.h"

namespace transload {

/// Chunks of a step whose state or weights have begun to change, and those that are through, in the order of the step.
struct StepProgress {
  std::vector<std::size_t> begun, done;
};

class TensorPipeline {
 public:
  /// Memory of the host that it takes for a state.
  static std::uint64_t staging_bytes(const TensorState& state);

  /// `arena`: resident_bytes() of the state that the caller owns; null: taken here.
  TensorPipeline(TensorState& state, void* arena);
  ~TensorPipeline();
  TensorPipeline(const TensorPipeline&) = delete;
  std::string unpinned_reason() const { return device_->unpinned_reason(); }

  /// `chunks`: all of the step. Fetches begin, resident chunks are updated.
  void begin_step(const std::vector<std::size_t>& chunks, void* caller_stream, StepProgress& progress);
  /// The next staged chunk, in the order of begin_step.
  void update_next(BlockAccess& access, Stream& stream, StepProgress& progress);
  void end_step();
  /// Waits for everything, of a step in the middle too; throws the device's error.
  void finish();

 private:
  void fetch(std::size_t index);
  StagingSlot slot(std::size_t index) const;

  TensorState& state_;
  std::unique_ptr<TensorDevice> device_;
  std::unique_ptr<TierMemory> staging_, arena_;
  std::vector<std::size_t> staged_;  ///< of the step under way
  std::size_t next_ = 0;
  bool in_step_ = false;
};

}  // namespace transload
