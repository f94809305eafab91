#include "optim/tensor_pipeline.h"

#include <algorithm>

#include "base/error.h"

namespace transload {
namespace {

constexpr std::size_t kSlots = TensorDevice::kSlots;

}  // namespace

std::uint64_t TensorPipeline::staging_bytes(const TensorState& state) {
  return state.slot_bytes() * (state.any_staged() ? kSlots : 1);
}

TensorPipeline::TensorPipeline(TensorState& state, void* arena)
    : state_(state), device_(open_tensor_device(state.device())) {
  if (state.slot_bytes() > 0) staging_ = device_->host_memory(staging_bytes(state));
  if (arena == nullptr && state.resident_bytes() > 0) {
    arena_ = device_->memory(state.resident_bytes());
    arena = arena_->base();
  }
  state.attach(device_.get(), static_cast<std::byte*>(arena), staging_ ? staging_->base() : nullptr);
}

TensorPipeline::~TensorPipeline() {
  try {
    finish();
  } catch (const std::exception&) {  // was, or would have been, the next step's
  }
}

void TensorPipeline::end_step() {
  in_step_ = false;
  device_->end_step();
}

void TensorPipeline::finish() {
  try {
    if (in_step_) end_step();
  } catch (const std::exception&) {
    device_->settle();
    throw;
  }
  device_->settle();
}

StagingSlot TensorPipeline::slot(std::size_t index) const {
  return state_.slot_at(staging_->base() + index % kSlots * state_.slot_bytes());
}

void TensorPipeline::fetch(std::size_t index) {
  if (index >= staged_.size()) return;
  device_->begin_fetch(index % kSlots);
  state_.fetch(staged_[index], slot(index));
  device_->end_fetch(index % kSlots);
}

void TensorPipeline::begin_step(const std::vector<std::size_t>& chunks, void* caller_stream, StepProgress& progress) {
  try {
    device_->settle();
  } catch (const Error& error) {
    throw Error(std::string("Weights of the step before did not all arrive. ") + error.what());
  }
  in_step_ = true;
  device_->begin_step(caller_stream);
  next_ = 0;
  staged_.clear();
  for (const std::size_t c : chunks)
    if (state_.on_device(c) && !state_.resident(c)) staged_.push_back(c);
  for (std::size_t i = 0; i + 1 < kSlots; ++i) fetch(i);
  for (const std::size_t c : chunks) {
    if (!state_.resident(c)) continue;
    progress.begun.push_back(c);
    state_.update_resident(c);
    progress.done.push_back(c);
  }
}

void TensorPipeline::update_next(BlockAccess& access, Stream& stream, StepProgress& progress) {
  const std::size_t index = next_++, chunk = staged_[index];
  fetch(index + kSlots - 1);  // into the slot of the chunk before, once that has gone up
  device_->wait_fetched(index % kSlots);
  const StagingSlot here = slot(index);
  state_.update_chunk(chunk, access, stream, &here);
  progress.begun.push_back(chunk);
  state_.send(chunk, here);
  device_->sent(index % kSlots);
  progress.done.push_back(chunk);
}

}  // namespace transload
