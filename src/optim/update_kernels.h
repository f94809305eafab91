// UpdateKernels: the update of one chunk on the processor whose tier holds its blocks: fused AdamW over the runs of
// memory that its planes have in common. Elementwise, so cuts do not change a bit: every form of this interface gives
// the same bits.
// Threading: update() is called by tasks of one stream.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/block_view.h"
#include "base/dtype.h"
#include "chunk/layout.h"
#include "kernels/cpu/adamw.h"

namespace transload {

/// What a step does to a parameter.
struct ParamUpdate {
  bool present = false;  ///< false: nothing
  kernels::AdamwCoefficients coefficients{};
};

/// A chunk's blocks (this rank's shard), pinned, and what happens to them. Small and copied into launches; `params` (by
/// ParamId) and the pieces stay as they are until the stream has ended.
struct ChunkUpdate {
  std::span<const Piece> pieces;  ///< of the shard
  std::uint64_t elements = 0;     ///< of the shard, padding included
  const std::vector<ParamUpdate>* params = nullptr;
  Dtype weight_dtype = Dtype::bf16, gradient_dtype = Dtype::bf16;
  float gradient_scale = 1;
  BlockView weight, residue, moment1, moment2, gradient;  ///< empty where the layout has no such plane

  /// Calls fn(AdamwRun, elements, coefficients) for the present parameters' elements among [begin, end) of the shard,
  /// in the longest runs that lie in one piece in every plane.
  template <class Fn>
  void for_each_run(std::uint64_t begin, std::uint64_t end, const Fn& fn) const {
    for (const Piece& piece : pieces) {
      const ParamUpdate& param = (*params)[piece.param.value];
      if (!param.present) continue;
      std::uint64_t at = std::max(begin, piece.chunk_begin);
      const std::uint64_t to = std::min(end, piece.chunk_begin + piece.count);
      while (at < to) {
        kernels::AdamwRun run;
        const std::uint64_t n = run_at(at, to, run);
        fn(run, static_cast<std::int64_t>(n), param.coefficients);
        at += n;
      }
    }
  }

 private:
  /// The run from element `at` on; its length.
  std::uint64_t run_at(std::uint64_t at, std::uint64_t to, kernels::AdamwRun& run) const {
    std::uint64_t n = to - at;
    const auto find = [&](const BlockView& view, auto*& data) {
      if (view.empty()) return;
      constexpr std::uint64_t kSize = sizeof(*data);
      const BlockView::Run found = view.run_at(at * kSize, to * kSize);
      data = reinterpret_cast<std::remove_reference_t<decltype(data)>>(found.data);
      n = std::min(n, found.bytes / kSize);
    };
    if (weight_dtype == Dtype::bf16)
      find(weight, run.weight);
    else
      find(weight, run.weight_f32);
    find(residue, run.residue);
    find(moment1, run.moment1);
    find(moment2, run.moment2);
    if (gradient_dtype == Dtype::bf16)
      find(gradient, run.gradient);
    else
      find(gradient, run.gradient_f32);
    return n;
  }
};

class UpdateKernels {
 public:
  virtual ~UpdateKernels() = default;
  virtual void update(const ChunkUpdate& update) = 0;
};

/// For tiers in host memory: in parallel over oneTBB's current arena.
std::unique_ptr<UpdateKernels> make_cpu_update_kernels();

}  // namespace transload
