// The parameters of each family, in the order of their first use in a step.
#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "base/error.h"
#include "train/model_config.h"

namespace transload {
namespace {

class ParamList {
 public:
  void add(std::string name, std::vector<std::int64_t> shape) {
    params_.push_back({std::move(name), {shape.begin(), shape.end()}, false});
  }
  /// NAME.weight [shape], and NAME.bias [bias_size] where there is one.
  void add_linear(const std::string& name, std::vector<std::int64_t> shape, bool bias, std::int64_t bias_size) {
    add(name + ".weight", std::move(shape));
    if (bias) add(name + ".bias", {bias_size});
  }
  std::vector<ParamSpec> take() { return std::move(params_); }

 private:
  std::vector<ParamSpec> params_;
};

void add_gpt2(const ModelConfig& c, ParamList& list) {
  list.add("transformer.wte.weight", {c.vocab, c.hidden});
  list.add("transformer.wpe.weight", {c.max_positions, c.hidden});
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const std::string layer = fmt::format("transformer.h.{}.", i);
    // GPT-2 stores its projections as [inputs, outputs].
    list.add_linear(layer + "ln_1", {c.hidden}, true, c.hidden);
    list.add_linear(layer + "attn.c_attn", {c.hidden, 3 * c.hidden}, true, 3 * c.hidden);
    list.add_linear(layer + "attn.c_proj", {c.hidden, c.hidden}, true, c.hidden);
    list.add_linear(layer + "ln_2", {c.hidden}, true, c.hidden);
    list.add_linear(layer + "mlp.c_fc", {c.hidden, c.intermediate}, true, c.intermediate);
    list.add_linear(layer + "mlp.c_proj", {c.intermediate, c.hidden}, true, c.hidden);
  }
  list.add_linear("transformer.ln_f", {c.hidden}, true, c.hidden);
}

void add_llama(const ModelConfig& c, ParamList& list) {
  const std::int64_t queries = c.heads * c.head_dim, keys = c.kv_heads * c.head_dim;
  list.add("model.embed_tokens.weight", {c.vocab, c.hidden});
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    list.add(layer + "input_layernorm.weight", {c.hidden});
    list.add_linear(layer + "self_attn.q_proj", {queries, c.hidden}, c.qkv_bias, queries);
    list.add_linear(layer + "self_attn.k_proj", {keys, c.hidden}, c.qkv_bias, keys);
    list.add_linear(layer + "self_attn.v_proj", {keys, c.hidden}, c.qkv_bias, keys);
    list.add_linear(layer + "self_attn.o_proj", {c.hidden, queries}, c.out_bias, c.hidden);
    list.add(layer + "post_attention_layernorm.weight", {c.hidden});
    list.add_linear(layer + "mlp.gate_proj", {c.intermediate, c.hidden}, c.mlp_bias, c.intermediate);
    list.add_linear(layer + "mlp.up_proj", {c.intermediate, c.hidden}, c.mlp_bias, c.intermediate);
    list.add_linear(layer + "mlp.down_proj", {c.hidden, c.intermediate}, c.mlp_bias, c.hidden);
  }
  list.add("model.norm.weight", {c.hidden});
}

void freeze_matching(const std::string& pattern, std::vector<ParamSpec>& params) {
  bool found = false;
  for (ParamSpec& param : params)
    if (fnmatch(pattern.c_str(), param.name.c_str(), 0) == 0) found = param.frozen = true;
  if (!found)
    throw InputError(fmt::format("--freeze {} matches no parameter of the model; they are called {}, …, {}.", pattern,
                                 params.front().name, params.back().name));
}

}  // namespace

std::vector<ParamSpec> model_params(const ModelConfig& config, const std::vector<std::string>& freeze) {
  ParamList list;
  if (config.family == Family::gpt2)
    add_gpt2(config, list);
  else
    add_llama(config, list);
  if (!config.tied) list.add("lm_head.weight", {config.vocab, config.hidden});
  std::vector<ParamSpec> params = list.take();
  for (const std::string& pattern : freeze) freeze_matching(pattern, params);
  if (std::all_of(params.begin(), params.end(), [](const ParamSpec& p) { return p.frozen; }))
    throw InputError("--freeze leaves no parameter to train.");
  return params;
}

}  // namespace transload
