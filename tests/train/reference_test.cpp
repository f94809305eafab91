// Against PyTorch: the cases of tests/reference (what they are, and how exact: README.md there).
#include <catch2/catch.hpp>
#include <cmath>

#include "train/reference_case.h"
#include "train/training_rig.h"

namespace transload::testing {
namespace {

double largest_of(const std::vector<float>& values) {
  double largest = 0;
  for (const float v : values) largest = std::max(largest, static_cast<double>(std::abs(v)));
  return largest;
}

/// How large the terms are that a gradient's elements are sums of: as its largest elements. But a key bias all but
/// cancels, since softmax does not see what all keys have in common; there the weight tells (its inputs are
/// normalised).
std::string tensor_of_terms(const std::string& name) {
  return name.ends_with("k_proj.bias") ? name.substr(0, name.size() - 4) + "weight" : name;
}

/// The floor is 16 fp32 roundings of such a term. Relative: what the README grants the reference, ten times, for our
/// own fp32.
void require_gradients(const Tensors& got, const Reference& reference) {
  Worst worst;
  for (const auto& [name, values] : got) {
    const std::vector<float> want = reference.tensor("grad." + name);
    REQUIRE(values.size() == want.size());
    const double largest = largest_of(reference.tensor("grad." + tensor_of_terms(name)));
    for (std::size_t i = 0; i < want.size(); ++i)
      worst.look(name, i, values[i], want[i], 2e-5 * std::abs(want[i]) + largest * 16 * 0x1p-24);
  }
  INFO(worst.where);
  CHECK(worst.excess <= 0);
}

}  // namespace

TEST_CASE("five fp32 steps are PyTorch's") {
  const auto* name = GENERATE("gpt2", "llama", "qwen2");
  CAPTURE(name);
  const Reference reference(name);
  TrainingRig rig(reference.config, *reference.weights, {});
  for (std::int64_t step = 0; step < 5; ++step) {
    CAPTURE(step);
    const auto at = static_cast<std::size_t>(step);
    const double loss = rig.forward_backward(reference.batch(step));
    CHECK(std::abs(loss - reference.losses[at]) <= 1e-6 * reference.losses[at]);
    const Verdict verdict = rig.finish();
    CHECK(std::abs(verdict.norm - reference.norms[at]) <= 5e-6 * reference.norms[at]);
    if (step == 0) require_gradients(rig.plane("gradient"), reference);
    rig.update(verdict);
  }
  rig.settle();
  require_weights(rig.plane("weight"), reference);
}

TEST_CASE("bf16 follows fp32") {
  const auto* name = GENERATE("gpt2", "llama", "qwen2");
  CAPTURE(name);
  const Reference reference(name);
  TrainingRig rig(reference.config, *reference.weights, {.dtype = Dtype::bf16, .gradients = Dtype::bf16});
  for (std::int64_t step = 0; step < 5; ++step) {
    CAPTURE(step);
    const auto at = static_cast<std::size_t>(step);
    const double loss = rig.forward_backward(reference.batch(step));
    CHECK(std::abs(loss - reference.losses[at]) <= 0.01 * reference.losses[at]);
    const Verdict verdict = rig.finish();
    CHECK(std::abs(verdict.norm - reference.norms[at]) <= 0.05 * reference.norms[at]);
    if (step == 0)
      for (const auto& [param, values] : rig.plane("gradient")) {
        // 2^-8 of rounding in each of some ten operations, against the tensor as a whole.
        const std::vector<float> want = reference.tensor("grad." + param);
        double error = 0, size = 0;
        for (std::size_t i = 0; i < want.size(); ++i) {
          error += std::pow(static_cast<double>(values[i]) - want[i], 2);
          size += std::pow(static_cast<double>(want[i]), 2);
        }
        CAPTURE(param);
        const bool cancels = param.ends_with("k_proj.bias");  // see tensor_of_terms
        CHECK(std::sqrt(error) <= (cancels ? 0.2 : 0.05) * std::sqrt(size));
      }
    rig.update(verdict);
  }
  rig.settle();
}

}  // namespace transload::testing
