#include "optim/tile_update.h"

#include <array>

#include "chunk/layout.h"
#include "kernels/cpu/content_hash.h"
#include "kernels/cpu/float_mode.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/stochastic.h"

namespace transload {
namespace {

using kernels::half;
using Buffer = std::array<float, kTile>;

/// A part of a tile that lies in one run in every plane.
struct Run {
  std::byte *weight, *low, *moment1, *moment2;
  const std::byte* gradient;
  std::uint64_t first, n;
};

float* widen(Dtype type, const std::byte* from, std::uint64_t n, Buffer& to) {
  for (std::uint64_t i = 0; i < n; ++i) {
    if (type == Dtype::f32) to[i] = reinterpret_cast<const float*>(from)[i];
    if (type == Dtype::bf16) to[i] = to_float(reinterpret_cast<const bf16*>(from)[i]);
    if (type == Dtype::f16) to[i] = kernels::to_float(reinterpret_cast<const half*>(from)[i]);
  }
  return to.data();
}

/// Masters restart where the tensor holds something else than their rounding.
void follow_tensor(const half* weight, std::uint64_t n, float* master) {
  for (std::uint64_t i = 0; i < n; ++i)
    if (kernels::to_half(master[i]).bits != weight[i].bits) master[i] = kernels::to_float(weight[i]);
}

void round_to(half* weight, std::uint64_t n, const float* master) {
  for (std::uint64_t i = 0; i < n; ++i) weight[i] = kernels::to_half(master[i]);
}

void update_run(const TensorUpdate& t, const Run& run) {
  kernels::AdamwRun args;
  const auto n = static_cast<std::int64_t>(run.n);
  Buffer gradient, moment1, moment2;
  auto* const master = reinterpret_cast<float*>(run.low);
  auto* const fp16 = reinterpret_cast<half*>(run.weight);
  if (t.weight == Dtype::f32) args.weight_f32 = reinterpret_cast<float*>(run.weight);
  if (t.weight == Dtype::bf16) {
    args.weight = reinterpret_cast<bf16*>(run.weight);
    args.residue = reinterpret_cast<std::int16_t*>(run.low);
  }
  if (t.weight == Dtype::f16) {
    follow_tensor(fp16, run.n, master);
    args.weight_f32 = master;
  }
  if (t.gradient == Dtype::bf16)
    args.gradient = reinterpret_cast<const bf16*>(run.gradient);
  else if (t.gradient == Dtype::f32)
    args.gradient_f32 = reinterpret_cast<const float*>(run.gradient);
  else
    args.gradient_f32 = widen(Dtype::f16, run.gradient, run.n, gradient);
  const bool narrow = t.moments == Dtype::bf16;
  args.moment1 = narrow ? widen(Dtype::bf16, run.moment1, run.n, moment1) : reinterpret_cast<float*>(run.moment1);
  args.moment2 = narrow ? widen(Dtype::bf16, run.moment2, run.n, moment2) : reinterpret_cast<float*>(run.moment2);
  kernels::adamw(args, n, t.coefficients, 1);
  if (narrow)
    kernels::round_stochastic(t.stream, run.first, n, args.moment1, args.moment2, reinterpret_cast<bf16*>(run.moment1),
                              reinterpret_cast<bf16*>(run.moment2));
  if (t.weight == Dtype::f16) round_to(fp16, run.n, master);
}

std::uint64_t low_size(Dtype weight) { return weight == Dtype::bf16 ? 2 : weight == Dtype::f16 ? 4 : 0; }

/// The longest run of elements [at, end) of a plane; narrows `n`.
std::byte* run_of(const BlockView& view, std::uint64_t at, std::uint64_t end, std::uint64_t size, std::uint64_t& n) {
  const BlockView::Run run = view.run_at(at * size, end * size);
  n = std::min(n, run.bytes / size);
  return run.data;
}

}  // namespace

void update_tile(const TensorUpdate& t, const TilePlanes& planes, std::uint64_t first, std::uint64_t n,
                 std::byte* weight, const std::byte* gradient, std::uint64_t* known) {
  const kernels::FloatMode mode;
  const std::uint64_t end = planes.at + n;
  const std::uint64_t moment_size = size_of(t.moments), weight_size = size_of(t.weight);
  const bool split = t.weight == Dtype::bf16;
  if (split && kernels::content_hash(weight, n * 2) != *known) planes.low.zero(planes.at * 2, end * 2);
  for (std::uint64_t done = 0; done < n;) {
    const std::uint64_t at = planes.at + done;
    Run run{weight + done * weight_size,           nullptr,      nullptr, nullptr,
            gradient + done * size_of(t.gradient), first + done, n - done};
    run.moment1 = run_of(planes.moment1, at, end, moment_size, run.n);
    run.moment2 = run_of(planes.moment2, at, end, moment_size, run.n);
    if (t.weight != Dtype::f32) run.low = run_of(planes.low, at, end, low_size(t.weight), run.n);
    update_run(t, run);
    done += run.n;
  }
  if (split) *known = kernels::content_hash(weight, n * 2);
}

void read_master(Dtype weight_type, const TilePlanes& planes, std::uint64_t n, const std::byte* weight,
                 const KnownTile& known, float* out) {
  const kernels::FloatMode mode;
  if (weight_type == Dtype::f16) {
    planes.low.copy_out(out, planes.at * 4, (planes.at + n) * 4);
    follow_tensor(reinterpret_cast<const half*>(weight), n, out);
    return;
  }
  std::array<std::int16_t, kTile> residue{};
  if (known.hash(weight, n * 2) == *known.value)
    planes.low.copy_out(residue.data(), planes.at * 2, (planes.at + n) * 2);
  for (std::uint64_t i = 0; i < n; ++i) out[i] = join_master(reinterpret_cast<const bf16*>(weight)[i], residue[i]);
}

void write_master(Dtype weight_type, const TilePlanes& planes, std::uint64_t n, const float* in, std::byte* weight,
                  const KnownTile& known) {
  if (weight_type == Dtype::f16) {
    planes.low.copy_in(in, planes.at * 4, (planes.at + n) * 4);
    if (weight != nullptr) round_to(reinterpret_cast<half*>(weight), n, in);
    return;
  }
  std::array<std::int16_t, kTile> residue;
  std::array<bf16, kTile> rounded;
  for (std::uint64_t i = 0; i < n; ++i) {
    const SplitMaster split = split_master(in[i]);
    residue[i] = split.residue;
    rounded[i] = split.weight;
  }
  planes.low.copy_in(residue.data(), planes.at * 2, (planes.at + n) * 2);
  *known.value = known.hash(rounded.data(), n * 2);
  if (weight != nullptr) std::memcpy(weight, rounded.data(), n * 2);
}

}  // namespace transload
