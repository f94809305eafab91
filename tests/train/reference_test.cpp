// Against PyTorch: the cases of tests/reference (what they are, and how exact: README.md there).
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "train/training_rig.h"

namespace transload::testing {
namespace {

constexpr std::int64_t kLength = 32, kBatch = 2;

struct Reference {
  std::string folder;
  ModelConfig config;
  std::unique_ptr<InitialWeights> weights;
  SafetensorsReader expected;
  std::vector<double> losses, norms;

  explicit Reference(const std::string& name)
      : folder(std::string(TRANSLOAD_SOURCE_DIR "/tests/reference/") + name),
        config(read_model_config(folder + "/config.json")),
        weights(weights_from_folder(config, model_params(config, {}), folder)),
        expected(SafetensorsReader::open_file(folder + "/expected.safetensors")) {
    const auto json = nlohmann::json::parse(std::ifstream(folder + "/expected.json"));
    losses = json.at("losses").get<std::vector<double>>();
    norms = json.at("grad_norms").get<std::vector<double>>();
  }
  std::vector<float> tensor(const std::string& name) const {
    const TensorInfo& info = expected.tensors().at(name);
    std::uint64_t elements = 1;
    for (const std::uint64_t n : info.shape) elements *= n;
    std::vector<float> values(elements);
    expected.read(info, 0, elements, values.data());
    return values;
  }
  std::vector<MicroBatch> batch(std::int64_t step) const {
    const TokenFile tokens(folder + "/tokens.bin", config.vocab, false);
    MicroBatch out;
    for (std::int64_t k = step * kBatch; k < (step + 1) * kBatch; ++k) {
      std::vector<std::int32_t> ids(kLength + 1);
      tokens.read(static_cast<std::uint64_t>(k * kLength), ids.size(), ids.data());
      out.inputs.insert(out.inputs.end(), ids.begin(), ids.end() - 1);
      out.targets.insert(out.targets.end(), ids.begin() + 1, ids.end());
    }
    return {out};
  }
};

/// The element that is furthest beyond relative × |expected| + floor; NaN is beyond everything.
struct Worst {
  std::string where;
  double excess = -INFINITY;
  void look(const std::string& name, std::size_t i, double got, double want, double allowed) {
    const double over = std::isnan(got) ? INFINITY : std::abs(got - want) - allowed;
    if (!(over <= excess)) {
      excess = over;
      where = fmt::format("{}[{}]: {} for {}, allowed {}", name, i, got, want, allowed);
    }
  }
};

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

/// GPT-2's key bias has no gradient but noise, which Adam scales up to the learning rate.
bool only_noise(const std::string& name, std::size_t i, const ModelConfig& config) {
  return name.ends_with("c_attn.bias") && static_cast<std::int64_t>(i) / config.hidden == 1;
}

void require_weights(const Tensors& got, const Reference& reference) {
  Worst worst;
  for (const auto& [name, values] : got) {
    const std::vector<float> want = reference.tensor("after." + name);
    REQUIRE(values.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i)
      worst.look(name, i, values[i], want[i],
                 only_noise(name, i, reference.config) ? 5 * 1e-3 : 5e-6 * std::abs(want[i]) + 2e-5);
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
