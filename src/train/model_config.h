// What a transformer is, from a Hugging Face config.json or a built-in name. Everything unsupported is refused by name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "chunk/layout.h"

namespace transload {

enum class Family : std::uint8_t { gpt2, llama, qwen2 };

struct RopeConfig {
  std::string type = "default";  ///< default | linear | llama3
  double theta = 10000;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  std::int64_t original_max_positions = 8192;
};

struct ModelConfig {
  Family family = Family::llama;
  std::int64_t vocab = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0,
               max_positions = 0;
  double norm_eps = 1e-5;
  double initializer_range = 0.02;
  bool tied = false;
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  std::string activation = "silu";  ///< silu | gelu_new | gelu_pytorch_tanh | gelu
  RopeConfig rope;
  std::vector<std::string> notes;  ///< said at start: "dropout 0.1 in the config is taken as 0"
  /// Keys without a meaning for training that an export hands on (bos_token_id, …), as JSON text.
  std::map<std::string, std::string> carried;

  bool operator==(const ModelConfig& other) const;  ///< identity for resume: all but notes and carried
};

/// InputError: names file and key of what is missing, contradictory or not supported.
ModelConfig read_model_config(const std::string& config_json_path);
ModelConfig parse_model_config(const std::string& json_text, const std::string& where);
/// "llama-60m", …; InputError with the nearest known name otherwise.
ModelConfig named_model(const std::string& name);
std::vector<std::string> model_names();
/// config.json that transformers reads (export); dtype "bfloat16" | "float32".
std::string to_hf_config(const ModelConfig& config, Dtype dtype);
/// For the manifest; parse_model_config(to_hf_config(c)) == c.

/// Parameters in order of first use, with Hugging Face names (GPT-2 with "transformer."; a tied head is absent).
/// `freeze`: glob patterns (fnmatch) of names; one that matches nothing is an InputError.
std::vector<ParamSpec> model_params(const ModelConfig& config, const std::vector<std::string>& freeze);

}  // namespace transload
