// A case of tests/reference (README.md there), and what PyTorch computed for it.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "train/data.h"
#include "train/model_config.h"
#include "train/safetensors.h"
#include "train/transformer.h"
#include "train/weights.h"

namespace transload::testing {

inline constexpr std::int64_t kLength = 32, kBatch = 2;

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
  std::size_t count(const std::string& prefix) const {
    return static_cast<std::size_t>(
        std::count_if(expected.tensors().begin(), expected.tensors().end(),
                      [&](const auto& tensor) { return tensor.first.starts_with(prefix); }));
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

/// GPT-2's key bias has no gradient but noise, which Adam scales up to the learning rate.
inline bool only_noise(const std::string& name, std::size_t i, const ModelConfig& config) {
  return name.ends_with("c_attn.bias") && static_cast<std::int64_t>(i) / config.hidden == 1;
}

/// Every weight after five steps. Relative: what the README grants the reference; the floor: elements whose gradient is
/// near epsilon.
inline void require_weights(const std::map<std::string, std::vector<float>>& got, const Reference& reference,
                            double floor = 2e-5) {
  Worst worst;
  REQUIRE(got.size() == reference.count("after."));
  for (const auto& [name, values] : got) {
    const std::vector<float> want = reference.tensor("after." + name);
    REQUIRE(values.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i)
      worst.look(name, i, values[i], want[i],
                 only_noise(name, i, reference.config) ? 5 * 1e-3 : 5e-6 * std::abs(want[i]) + floor);
  }
  INFO(worst.where);
  CHECK(worst.excess <= 0);
}

}  // namespace transload::testing
