// config.json as transformers reads it. Defaults that differ between versions are written out.
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "train/model_config.h"

namespace transload {
namespace {

using Json = nlohmann::ordered_json;

void write_gpt2(const ModelConfig& config, Json& json) {
  json["architectures"] = {"GPT2LMHeadModel"};
  json["model_type"] = "gpt2";
  json["n_embd"] = config.hidden;
  json["n_layer"] = config.layers;
  json["n_head"] = config.heads;
  json["n_inner"] = config.intermediate;
  json["n_positions"] = config.max_positions;
  json["layer_norm_epsilon"] = config.norm_eps;
  json["activation_function"] = config.activation;
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) json[key] = 0.0;
}

/// Both ways of writing: transformers 5 reads rope_parameters, older versions rope_theta and rope_scaling.
void write_rope(const RopeConfig& rope, Json& json) {
  Json scaling = {{"rope_type", rope.type}};
  if (rope.type != "default") scaling["factor"] = rope.factor;
  if (rope.type == "llama3") {
    scaling["low_freq_factor"] = rope.low_freq_factor;
    scaling["high_freq_factor"] = rope.high_freq_factor;
    scaling["original_max_position_embeddings"] = rope.original_max_positions;
  }
  json["rope_theta"] = rope.theta;
  json["rope_scaling"] = rope.type == "default" ? Json() : scaling;
  json["rope_parameters"] = scaling;
  json["rope_parameters"]["rope_theta"] = rope.theta;
}

void write_llama(const ModelConfig& config, Json& json) {
  const bool qwen2 = config.family == Family::qwen2;
  json["architectures"] = {qwen2 ? "Qwen2ForCausalLM" : "LlamaForCausalLM"};
  json["model_type"] = qwen2 ? "qwen2" : "llama";
  json["hidden_size"] = config.hidden;
  json["num_hidden_layers"] = config.layers;
  json["num_attention_heads"] = config.heads;
  json["num_key_value_heads"] = config.kv_heads;
  json["head_dim"] = config.head_dim;
  json["intermediate_size"] = config.intermediate;
  json["max_position_embeddings"] = config.max_positions;
  json["rms_norm_eps"] = config.norm_eps;
  json["hidden_act"] = config.activation;
  json["attention_dropout"] = 0.0;
  write_rope(config.rope, json);
  if (qwen2) {
    json["use_sliding_window"] = false;
  } else {
    json["attention_bias"] = config.qkv_bias;
    json["mlp_bias"] = config.mlp_bias;
  }
}

}  // namespace

std::string to_hf_config(const ModelConfig& config, Dtype dtype) {
  TRANSLOAD_CHECK(dtype == Dtype::bf16 || dtype == Dtype::f32, "a model of {}", name_of(dtype));
  Json json;
  if (config.family == Family::gpt2)
    write_gpt2(config, json);
  else
    write_llama(config, json);
  json["vocab_size"] = config.vocab;
  json["initializer_range"] = config.initializer_range;
  json["tie_word_embeddings"] = config.tied;
  // Named even where there is none: transformers would take the ids of the family's own vocabulary.
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    const auto found = config.carried.find(key);
    json[key] = found == config.carried.end() ? Json() : Json::parse(found->second);
  }
  json["dtype"] = json["torch_dtype"] = dtype == Dtype::bf16 ? "bfloat16" : "float32";
  return json.dump(2) + "\n";
}

}  // namespace transload
