#include "train/model_config.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "train/input_file.h"
#include "train/json_keys.h"

namespace transload {
namespace {

constexpr std::int64_t kMostLayers = 1 << 16;

struct FamilyNames {
  Family family;
  const char* model_type;
  const char* causal_lm;
  const char* base_model;
};
constexpr FamilyNames kFamilies[] = {
    {Family::gpt2, "gpt2", "GPT2LMHeadModel", "GPT2Model"},
    {Family::llama, "llama", "LlamaForCausalLM", "LlamaModel"},
    {Family::qwen2, "qwen2", "Qwen2ForCausalLM", "Qwen2Model"},
};

Family family_of(const JsonKeys& keys) {
  std::string architecture;
  if (keys.has("architectures")) {
    const nlohmann::json& list = keys.at("architectures");
    if (!list.is_array() || list.empty() || !list[0].is_string())
      keys.refuse("\"architectures\" must be a list of names.");
    architecture = list[0].get<std::string>();
  }
  const std::string type = keys.text("model_type", "");
  if (type.empty() && architecture.empty()) keys.refuse("\"model_type\" is missing, so the architecture is not known.");
  for (const FamilyNames& f : kFamilies) {
    const bool architecture_fits = architecture == f.causal_lm || architecture == f.base_model;
    if (type == f.model_type) {
      if (!architecture.empty() && !architecture_fits)
        keys.refuse(fmt::format("the architecture {} is not supported; of model_type {}, {} is.", architecture, type,
                                f.causal_lm));
      return f.family;
    }
    if (type.empty() && architecture_fits) return f.family;
  }
  keys.refuse(fmt::format("the architecture {} is not supported; gpt2, llama and qwen2 are.",
                          type.empty() ? architecture : fmt::format("{} (model_type)", type)));
}

void note_dropout(const JsonKeys& keys, const char* key, double otherwise, ModelConfig& config) {
  const double dropout = keys.number(key, otherwise);
  if (dropout != 0) config.notes.push_back(fmt::format("{} {} in the config is taken as 0.", key, dropout));
}

double positive(const JsonKeys& keys, const char* key, double value) {
  if (!(value > 0) || !std::isfinite(value)) keys.refuse(fmt::format("\"{}\" is {}, but must be above 0.", key, value));
  return value;
}

void read_gpt2(const JsonKeys& keys, ModelConfig& config) {
  config.vocab = keys.size("vocab_size");
  config.hidden = keys.size("n_embd");
  config.layers = keys.size("n_layer");
  config.heads = config.kv_heads = keys.size("n_head");
  config.max_positions = keys.size("n_positions", 1024);
  config.intermediate = keys.size("n_inner", 4 * config.hidden);
  config.norm_eps = positive(keys, "layer_norm_epsilon", keys.number("layer_norm_epsilon", 1e-5));
  config.tied = keys.flag("tie_word_embeddings", true);
  config.qkv_bias = config.out_bias = config.mlp_bias = true;
  config.activation = keys.text("activation_function", "gelu_new");
  if (config.activation != "gelu_new" && config.activation != "gelu_pytorch_tanh" && config.activation != "gelu")
    keys.refuse(
        fmt::format("the activation_function {} is not supported for GPT-2; gelu_new, gelu_pytorch_tanh and "
                    "gelu are.",
                    config.activation));
  if (!keys.flag("scale_attn_weights", true)) keys.refuse("scale_attn_weights false is not supported.");
  if (keys.flag("scale_attn_by_inverse_layer_idx", false))
    keys.refuse("scale_attn_by_inverse_layer_idx is not supported.");
  if (keys.flag("add_cross_attention", false)) keys.refuse("add_cross_attention is not supported.");
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) note_dropout(keys, key, 0.1, config);
}

/// `rope_parameters` (transformers 5), `rope_scaling` and a theta of its own (before): whichever is there.
JsonKeys rope_object(const JsonKeys& keys) {
  static const nlohmann::json kNone = nlohmann::json::object();
  const bool now = keys.has("rope_parameters"), before = keys.has("rope_scaling");
  if (now && before) {
    nlohmann::json a = keys.at("rope_parameters"), b = keys.at("rope_scaling");
    for (nlohmann::json* json : {&a, &b})
      if (json->is_object()) json->erase("rope_theta");
    if (a != b) keys.refuse("\"rope_parameters\" and \"rope_scaling\" are both there and contradict each other.");
  }
  if (now) return keys.object("rope_parameters");
  if (before) return keys.object("rope_scaling");
  return {kNone, ""};
}

double rope_theta(const JsonKeys& keys, const JsonKeys& rope) {
  const double outer = keys.number("rope_theta", 10000);
  if (!rope.has("rope_theta")) return positive(keys, "rope_theta", outer);
  const double inner = positive(rope, "rope_theta", rope.number("rope_theta"));
  if (keys.has("rope_theta") && inner != outer)
    keys.refuse(fmt::format("\"rope_theta\" is {} at the top and {} among the rotary parameters.", outer, inner));
  return inner;
}

RopeConfig read_rope(const JsonKeys& keys, std::int64_t max_positions) {
  const JsonKeys rope = rope_object(keys);
  for (const auto& [key, value] : rope.json().items())
    if (value.is_object()) rope.refuse(fmt::format("rotary parameters by layer type ({}) are not supported.", key));
  RopeConfig config;
  config.theta = rope_theta(keys, rope);
  config.type = rope.text("rope_type", rope.text("type", "default"));
  for (const JsonKeys* place : {&keys, &rope}) {
    const double part = place->number("partial_rotary_factor", 1);
    if (part != 1) place->refuse(fmt::format("partial_rotary_factor {} is not supported; only 1 is.", part));
  }
  if (config.type == "default") return config;
  if (config.type != "linear" && config.type != "llama3")
    rope.refuse(fmt::format("the rotary type {} is not supported; default, linear and llama3 are.", config.type));
  config.factor = positive(rope, "factor", rope.number("factor"));
  if (config.type == "linear") return config;
  config.low_freq_factor = positive(rope, "low_freq_factor", rope.number("low_freq_factor"));
  config.high_freq_factor = positive(rope, "high_freq_factor", rope.number("high_freq_factor"));
  if (config.high_freq_factor <= config.low_freq_factor)
    rope.refuse(fmt::format("\"high_freq_factor\" ({}) must be above \"low_freq_factor\" ({}).",
                            config.high_freq_factor, config.low_freq_factor));
  config.original_max_positions = rope.size("original_max_position_embeddings", max_positions);
  return config;
}

void refuse_windows(const JsonKeys& keys, const ModelConfig& config) {
  if (keys.has("layer_types")) {
    const nlohmann::json& types = keys.at("layer_types");
    if (!types.is_array() || types.size() != static_cast<std::size_t>(config.layers))
      keys.refuse(fmt::format("\"layer_types\" must be a list of num_hidden_layers ({}) names.", config.layers));
    for (const nlohmann::json& type : types)
      if (type != "full_attention")
        keys.refuse(fmt::format("the layer type {} is not supported; \"full_attention\" is.", type.dump()));
    return;
  }
  // Qwen2 says for each layer from max_window_layers on that it has a window, if one is in use at all.
  const bool in_use = config.family == Family::qwen2
                          ? keys.flag("use_sliding_window", false) && keys.size("sliding_window", 4096) > 0 &&
                                keys.number("max_window_layers", 28) < static_cast<double>(config.layers)
                          : keys.has("sliding_window");
  if (in_use) keys.refuse("the sliding window (\"sliding_window\") is in use, and that is not supported.");
}

void read_llama(const JsonKeys& keys, ModelConfig& config) {
  const bool qwen2 = config.family == Family::qwen2;
  config.vocab = keys.size("vocab_size");
  config.hidden = keys.size("hidden_size");
  config.layers = keys.size("num_hidden_layers");
  config.heads = keys.size("num_attention_heads");
  config.kv_heads = keys.size("num_key_value_heads", config.heads);
  config.intermediate = keys.size("intermediate_size");
  config.max_positions = keys.size("max_position_embeddings", qwen2 ? 32768 : 2048);
  config.norm_eps = positive(keys, "rms_norm_eps", keys.number("rms_norm_eps", 1e-6));
  config.tied = keys.flag("tie_word_embeddings", false);
  config.qkv_bias = qwen2 || keys.flag("attention_bias", false);
  config.out_bias = !qwen2 && config.qkv_bias;
  config.mlp_bias = !qwen2 && keys.flag("mlp_bias", false);
  config.activation = keys.text("hidden_act", "silu");
  if (config.activation == "swish") config.activation = "silu";
  if (config.activation != "silu")
    keys.refuse(fmt::format("the hidden_act {} is not supported for {}; silu is.", config.activation,
                            qwen2 ? "Qwen2" : "Llama"));
  config.rope = read_rope(keys, config.max_positions);
  refuse_windows(keys, config);
  note_dropout(keys, "attention_dropout", 0, config);
}

void check_heads(const JsonKeys& keys, ModelConfig& config) {
  const bool own_head_dim = config.family != Family::gpt2 && keys.has("head_dim");
  if (config.hidden % config.heads != 0 && !(own_head_dim && config.family == Family::qwen2))
    keys.refuse(fmt::format("the hidden size {} is not a multiple of the number of attention heads, {}.", config.hidden,
                            config.heads));
  config.head_dim = own_head_dim ? keys.size("head_dim") : config.hidden / config.heads;
  if (config.heads % config.kv_heads != 0)
    keys.refuse(fmt::format("the number of attention heads {} is not a multiple of num_key_value_heads, {}.",
                            config.heads, config.kv_heads));
  if (config.family != Family::gpt2 && config.head_dim % 2 != 0)
    keys.refuse(fmt::format("heads of {} elements cannot be rotated: the size must be even.", config.head_dim));
  if (config.heads * config.head_dim > INT32_MAX)
    keys.refuse(fmt::format("{} heads of {} elements are too many.", config.heads, config.head_dim));
}

void read_common(const JsonKeys& keys, ModelConfig& config) {
  if (keys.has("quantization_config")) keys.refuse("quantized weights (\"quantization_config\") are not supported.");
  if (config.layers > kMostLayers)
    keys.refuse(fmt::format("{} layers are more than the {} that are supported.", config.layers, kMostLayers));
  check_heads(keys, config);
  config.initializer_range = keys.number("initializer_range", 0.02);
  if (!(config.initializer_range >= 0 && config.initializer_range <= 1))
    keys.refuse(fmt::format("\"initializer_range\" is {}, but must lie between 0 and 1.", config.initializer_range));
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (keys.has(key)) config.carried[key] = keys.at(key).dump();
  if (keys.has("pad_token_id"))
    config.notes.push_back(
        fmt::format("The embedding of pad_token_id {} is trained like any other.", keys.at("pad_token_id").dump()));
}

}  // namespace

ModelConfig parse_model_config(const std::string& json_text, const std::string& where) {
  const nlohmann::json parsed = parse_json_object(json_text, where);
  const JsonKeys keys(parsed, where);
  ModelConfig config;
  config.family = family_of(keys);
  if (config.family == Family::gpt2)
    read_gpt2(keys, config);
  else
    read_llama(keys, config);
  read_common(keys, config);
  return config;
}

ModelConfig read_model_config(const std::string& config_json_path) {
  return parse_model_config(read_text_file(config_json_path, 16u << 20), config_json_path);
}

bool ModelConfig::operator==(const ModelConfig& other) const {
  const auto all = [](const ModelConfig& c) {
    return std::tie(c.family, c.vocab, c.hidden, c.layers, c.heads, c.kv_heads, c.head_dim, c.intermediate,
                    c.max_positions, c.norm_eps, c.initializer_range, c.tied, c.qkv_bias, c.out_bias, c.mlp_bias,
                    c.activation, c.rope.type, c.rope.theta, c.rope.factor, c.rope.low_freq_factor,
                    c.rope.high_freq_factor, c.rope.original_max_positions);
  };
  return all(*this) == all(other);
}

}  // namespace transload
