// One decoder layer of a family. Forward is two parts, so that backward can make again (or be given) what it needs:
// `inner` are the activations that backward uses beside the layer's input, one contiguous region.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cpu/attention.h"
#include "train/model_config.h"
#include "train/rotary_tables.h"
#include "train/weight_panels.h"

namespace transload {

template <class T>
class Layer {
 public:
  virtual ~Layer() = default;
  virtual std::uint64_t inner_bytes() const = 0;
  /// Scratch of one call of each kind, beside the arguments.
  virtual std::uint64_t forward_bytes() const = 0;
  virtual std::uint64_t backward_bytes() const = 0;

  /// inner from x; h [tokens, hidden] is scribbled on.
  virtual void forward_inner(StepContext& ctx, Scratch scratch, const T* x, std::byte* inner, T* h) = 0;
  /// y from inner.
  virtual void forward_output(StepContext& ctx, Scratch scratch, const std::byte* inner, T* y) = 0;
  /// dy becomes the gradient of x; inner is scribbled on; parameters' gradients go to the optimizer.
  virtual void backward(StepContext& ctx, Scratch scratch, const T* x, std::byte* inner, T* dy) = 0;
};

/// Sizes that the layers of a model share.
struct LayerShape {
  std::int64_t tokens = 0, hidden = 0, intermediate = 0;
  kernels::AttentionShape attention;  ///< strides: of one [tokens, qkv_width] array of queries, keys, values
  std::int64_t query_width = 0, kv_width = 0, qkv_width = 0;
};
LayerShape layer_shape(const ModelConfig& config, std::int64_t batch, std::int64_t length);

/// What attention's backward needs, in the region `inner` of both families.
template <class T>
struct AttentionInner {
  T *qkv = nullptr, *out = nullptr;
  float* lse = nullptr;
  static AttentionInner place(Scratch& region, const LayerShape& s);
};
/// Queries, keys, values → out, lse.
template <class T>
void attention_forward(StepContext& ctx, const LayerShape& s, const AttentionInner<T>& in, std::byte* scratch);
/// dqkv from dout.
template <class T>
void attention_backward(StepContext& ctx, const LayerShape& s, const AttentionInner<T>& in, const T* dout, T* dqkv,
                        std::byte* scratch);

/// Sizes of a layer from how its buffers are placed: `Inner::place(Scratch&, shape)` the region `inner`,
/// `Buffers::place(Scratch&, shape, panel sizes, backward)` the scratch.
template <class T, class Inner, class Buffers>
class PlacedLayer : public Layer<T> {
 public:
  std::uint64_t inner_bytes() const override {
    Scratch region(nullptr);
    Inner::place(region, shape_);
    return region.peak();
  }
  std::uint64_t forward_bytes() const override { return scratch_bytes(false); }
  std::uint64_t backward_bytes() const override { return scratch_bytes(true); }

 protected:
  explicit PlacedLayer(const LayerShape& shape) : shape_(shape) {}
  void size_panels(const Layout& layout, const StepKernels& kernels, std::span<const ParamId> params) {
    sizes_ = PanelSizes::of(layout, kernels, params, shape_.tokens);
    sizes_.scratch_bytes = std::max(sizes_.scratch_bytes, kernels.attention_scratch_bytes(shape_.attention));
  }
  Inner inner_at(const std::byte* region) const {
    Scratch scratch(const_cast<std::byte*>(region));
    return Inner::place(scratch, shape_);
  }
  Buffers buffers(Scratch scratch, bool backward) const { return Buffers::place(scratch, shape_, sizes_, backward); }

  LayerShape shape_;

 private:
  std::uint64_t scratch_bytes(bool backward) const {
    Scratch scratch(nullptr);
    Buffers::place(scratch, shape_, sizes_, backward);
    return scratch.peak();
  }
  PanelSizes sizes_;
};

/// `index`: which layer. References must outlive it.
template <class T>
std::unique_ptr<Layer<T>> make_llama_layer(const ModelConfig& config, const Layout& layout, std::int64_t index,
                                           const LayerShape& shape, const StepKernels& kernels,
                                           const RotaryTables& rotary);
template <class T>
std::unique_ptr<Layer<T>> make_gpt2_layer(const ModelConfig& config, const Layout& layout, std::int64_t index,
                                          const LayerShape& shape, const StepKernels& kernels);

}  // namespace transload
