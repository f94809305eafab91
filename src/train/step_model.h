// The step of a model whose activations are T: what Transformer does, by element type.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "train/step_kernels.h"
#include "train/transformer.h"

namespace transload {

class StepModel {
 public:
  virtual ~StepModel() = default;
  virtual const std::vector<BlockSpec>& kept_blocks() const = 0;
  virtual std::vector<std::uint32_t> contributions() const = 0;
  virtual std::uint64_t workspace_bytes() const = 0;
  virtual double forward_backward(const Runtime& rt, Optimizer& optimizer, std::span<const MicroBatch> batches) = 0;
  virtual double evaluate(const Runtime& rt, Optimizer& optimizer, const MicroBatch& batch) = 0;
};

/// T: float or bf16, the layout's weight dtype.
template <class T>
std::unique_ptr<StepModel> make_step_model(const ModelConfig& config, const Layout& layout, const StepShape& shape,
                                           StepKernels& kernels);

}  // namespace transload
