#include "optim/shard_exchange.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace transload {

ShardExchange::ShardExchange(const Layout& layout, BlockAccess& blocks, Options options,
                             std::shared_ptr<GradientKernels> squares, std::function<void(ChunkId)> before_gather)
    : layout_(layout),
      blocks_(blocks),
      options_(std::move(options)),
      squares_(std::move(squares)),
      before_gather_(std::move(before_gather)),
      weight_(layout.plane("weight")),
      gathered_(layout.plane("gathered")),
      local_(layout.plane("local")),
      gradient_(layout.plane("gradient")),
      held_(layout.chunks().size()) {
  TRANSLOAD_CHECK(gathered_ >= 0 && local_ >= 0, "shards of {} ranks without the planes that they share",
                  layout.shards().count);
}

void ShardExchange::begin_pass(std::size_t pass) {
  for (std::size_t c = 0; c < held_.size(); ++c)
    if (held_[c]) give_up(ChunkId(c));
  plan_ = pass < options_.plans.size() ? &options_.plans[pass] : nullptr;
  next_ = 0;
  uses_.clear();
}

Pin ShardExchange::use_weights(ChunkId chunk, Tier tier) {
  if (blocks_.dry()) uses_.push_back(chunk);
  const GatherPlan::Use* use = planned(chunk);
  const bool held_before = held_[chunk.value];
  if (use != nullptr)
    for (const ChunkId c : use->gather)
      if (!held_[c.value]) gather(c);
  if (!held_[chunk.value]) gather(chunk);
  const bool last = use != nullptr ? use->last : !held_before;
  held_[chunk.value] = !last;
  return blocks_.pin(block(chunk, gathered_), tier, last ? AccessKind::consume : AccessKind::read);
}

/// The plan's next use of the chunk; null where the plan has none, since the pass is not the planned one.
const GatherPlan::Use* ShardExchange::planned(ChunkId chunk) {
  if (plan_ == nullptr) return nullptr;
  for (std::size_t i = next_; i < plan_->uses.size(); ++i)
    if (plan_->uses[i].chunk == chunk) {
      next_ = i + 1;
      return &plan_->uses[i];
    }
  return nullptr;
}

void ShardExchange::gather(ChunkId chunk) {
  before_gather_(chunk);
  Stream& stream = *options_.stream;
  Pin shard = blocks_.pin(block(chunk, weight_), options_.tier, AccessKind::read);
  Pin whole = blocks_.pin(block(chunk, gathered_), options_.tier, AccessKind::write);
  stream.wait(shard.ready);
  stream.wait(whole.ready);
  stream.name("gather", chunk.value);
  stream.launch([this, from = shard.view, to = whole.view, chunk] {
    publish(chunk, "gather of weights");
    options_.communicator->all_gather(from, to, options_.stream->underlying());
  });
  blocks_.unpin(std::move(shard), stream);
  blocks_.unpin(std::move(whole), stream);
  held_[chunk.value] = true;
}

void ShardExchange::give_up(ChunkId chunk) {
  Pin pin = blocks_.pin(block(chunk, gathered_), options_.tier, AccessKind::consume);
  options_.stream->wait(pin.ready);
  blocks_.unpin(std::move(pin), *options_.stream);
  held_[chunk.value] = false;
}

void ShardExchange::sum_gradient(ChunkId chunk, const std::function<bool(ParamId)>& trained) {
  Stream& stream = *options_.stream;
  // A rank that is ahead of the others would pile up gradients of all chunks. It meets them at the verdict anyway, so
  // it loses nothing by waiting for the sum before this one, which had a chunk's backward pass to run beside. A
  // device's work is issued far ahead and does not stop for that.
  if (options_.tier == Tier::host) stream.synchronize();
  Pin local = blocks_.pin(block(chunk, local_), options_.tier, AccessKind::consume);
  Pin sum = blocks_.pin(block(chunk, gradient_), options_.tier, AccessKind::write);
  stream.wait(local.ready);
  stream.wait(sum.ready);
  const Dtype dtype = layout_.planes()[static_cast<std::size_t>(gradient_)].dtype;
  stream.name("sum", chunk.value);
  stream.launch([this, from = local.view, to = sum.view, dtype, chunk] {
    publish(chunk, "sum of gradients");
    options_.communicator->reduce_scatter(from, to, dtype, options_.stream->underlying());
  });
  for (const Piece& piece : layout_.shard_pieces(chunk))
    if (trained(piece.param))
      stream.launch([squares = squares_.get(), view = sum.view, dtype, at = piece.chunk_begin, n = piece.count] {
        squares->add_squares(view, dtype, at, n);
      });
  blocks_.unpin(std::move(local), stream);
  blocks_.unpin(std::move(sum), stream);
}

void ShardExchange::publish(ChunkId chunk, const char* operation) const {
  const std::uint64_t step = options_.step == nullptr ? 0 : options_.step->load(std::memory_order_relaxed);
  options_.communicator->publish({.step = step, .chunk = chunk.value, .operation = operation});
}

kernels::ExactSum ShardExchange::finish() {
  options_.stream->synchronize();
  blocks_.rethrow_if_failed();  // other ranks were given what a transfer should have brought
  kernels::ExactSum total = squares_->take_squares();
  if (options_.communicator == nullptr) return total;
  static_assert(std::is_trivially_copyable_v<kernels::ExactSum>);
  std::vector<kernels::ExactSum> all(static_cast<std::size_t>(options_.communicator->size()));
  options_.communicator->exchange(std::as_bytes(std::span(&total, 1)), std::as_writable_bytes(std::span(all)));
  total = {};
  for (const kernels::ExactSum& one : all) total.merge(one);
  return total;
}

}  // namespace transload
