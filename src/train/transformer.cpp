#include "train/transformer.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "train/step_model.h"

namespace transload {

struct Transformer::Impl {
  std::unique_ptr<StepKernels> kernels;
  std::unique_ptr<StepModel> model;
};

Transformer::Transformer(const ModelConfig& config, const Layout& layout, StepShape shape,
                         std::unique_ptr<StepKernels> kernels)
    : impl_(std::make_unique<Impl>()) {
  TRANSLOAD_CHECK(shape.batch > 0 && shape.length > 0 && shape.accumulate > 0 && config.layers > 0,
                  "a step of {} micro-batches of {} × {} tokens through {} layers", shape.accumulate, shape.batch,
                  shape.length, config.layers);
  if (config.family == Family::gpt2 && shape.length > config.max_positions)
    throw InputError(fmt::format(
        "Samples of {} tokens are longer than the {} positions that this GPT-2 has; give a --sequence-length "
        "of at most {}.",
        shape.length, config.max_positions, config.max_positions));
  impl_->kernels = kernels != nullptr ? std::move(kernels) : make_cpu_kernels(layout.weight_dtype());
  impl_->model = layout.weight_dtype() == Dtype::bf16 ? make_step_model<bf16>(config, layout, shape, *impl_->kernels)
                                                      : make_step_model<float>(config, layout, shape, *impl_->kernels);
}
Transformer::~Transformer() = default;

const std::vector<BlockSpec>& Transformer::kept_blocks() const { return impl_->model->kept_blocks(); }
std::vector<std::uint32_t> Transformer::contributions() const { return impl_->model->contributions(); }
std::uint64_t Transformer::workspace_bytes() const { return impl_->model->workspace_bytes(); }

double Transformer::forward_backward(const Runtime& rt, Optimizer& optimizer, std::span<const MicroBatch> batches) {
  return impl_->model->forward_backward(rt, optimizer, batches);
}
double Transformer::evaluate(const Runtime& rt, Optimizer& optimizer, const MicroBatch& batch) {
  return impl_->model->evaluate(rt, optimizer, batch);
}

}  // namespace transload
