// Models that have a name, as their makers published them.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "train/model_config.h"

namespace transload {
namespace {

struct Shape {
  const char* name;
  Family family;
  std::int64_t hidden, layers, heads, kv_heads, intermediate, vocab, max_positions;
  bool tied;
};

constexpr Shape kShapes[] = {
    {"gpt2-124m", Family::gpt2, 768, 12, 12, 12, 3072, 50257, 1024, true},
    {"gpt2-355m", Family::gpt2, 1024, 24, 16, 16, 4096, 50257, 1024, true},
    {"gpt2-774m", Family::gpt2, 1280, 36, 20, 20, 5120, 50257, 1024, true},
    {"gpt2-1558m", Family::gpt2, 1600, 48, 25, 25, 6400, 50257, 1024, true},
    {"llama-60m", Family::llama, 512, 8, 8, 8, 1376, 32000, 2048, false},
    {"llama-350m", Family::llama, 1024, 24, 16, 16, 2736, 32000, 2048, false},
    {"llama-1b", Family::llama, 2048, 22, 32, 4, 5632, 32000, 2048, false},  // TinyLlama
    {"llama-7b", Family::llama, 4096, 32, 32, 32, 11008, 32000, 4096, false},
    {"qwen2-0.5b", Family::qwen2, 896, 24, 14, 2, 4864, 151936, 131072, true},
    {"qwen2-1.5b", Family::qwen2, 1536, 28, 12, 2, 8960, 151936, 131072, true},
    {"qwen2-7b", Family::qwen2, 3584, 28, 28, 4, 18944, 152064, 131072, false},
};

ModelConfig config_of(const Shape& shape) {
  ModelConfig config;
  config.family = shape.family;
  config.vocab = shape.vocab;
  config.hidden = shape.hidden;
  config.layers = shape.layers;
  config.heads = shape.heads;
  config.kv_heads = shape.kv_heads;
  config.head_dim = shape.hidden / shape.heads;
  config.intermediate = shape.intermediate;
  config.max_positions = shape.max_positions;
  config.tied = shape.tied;
  config.norm_eps = shape.family == Family::qwen2 ? 1e-6 : 1e-5;
  if (shape.family == Family::gpt2) {
    config.qkv_bias = config.out_bias = config.mlp_bias = true;
    config.activation = "gelu_new";
  }
  if (shape.family == Family::qwen2) {
    config.qkv_bias = true;
    config.rope.theta = 1e6;
  }
  return config;
}

/// Insertions, removals and replacements between two names.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0u);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.push_back(shape.name);
  return names;
}

ModelConfig named_model(const std::string& name) {
  const auto found =
      std::find_if(std::begin(kShapes), std::end(kShapes), [&](const Shape& s) { return s.name == name; });
  if (found != std::end(kShapes)) return config_of(*found);
  const std::vector<std::string> names = model_names();
  const std::string nearest = *std::min_element(names.begin(), names.end(), [&](const auto& a, const auto& b) {
    return edit_distance(name, a) < edit_distance(name, b);
  });
  throw InputError(
      fmt::format("There is no folder and no built-in model called \"{}\"; the nearest name is {}. Names: {}.", name,
                  nearest, fmt::join(names, ", ")));
}

}  // namespace transload
