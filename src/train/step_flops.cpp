#include "train/transformer.h"

namespace transload {

double step_flops(const ModelConfig& config, const StepShape& shape) {
  const auto d = [](std::int64_t n) { return static_cast<double>(n); };
  const double hidden = d(config.hidden), inner = d(config.intermediate);
  const double queries = d(config.heads * config.head_dim), keys = d(config.kv_heads * config.head_dim);
  // A token's products in one forward: two operations a weight; attention sees half of the sequence on average.
  const double up = 2 * hidden * inner * (config.family == Family::gpt2 ? 1 : 2);
  const double down = 2 * inner * hidden;
  const double projections = 2 * hidden * (queries + 2 * keys) + 2 * queries * hidden;
  const double attention = 2 * 2 * queries * (d(shape.length) + 1) / 2;
  const double head = 2 * hidden * d(config.vocab);
  // Backward: the gradients of input and weights (twice the forward); attention's has five products where forward has
  // two; recomputation repeats
  // all of a layer but its last product, and the head's logits.
  const double recomputed = shape.recompute == Recompute::layer ? projections + attention + up : 0;
  const double layer = 3 * (projections + up + down) + attention * (1 + 2.5) + recomputed;
  const double head_products = shape.recompute == Recompute::layer ? 4 : 3;
  const double tokens = d(shape.batch) * d(shape.length) * d(shape.accumulate);
  return tokens * (d(config.layers) * layer + head_products * head);
}

}  // namespace transload
