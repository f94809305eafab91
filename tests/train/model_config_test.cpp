#include "train/model_config.h"

#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "temp_folder.h"

using namespace transload;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

const std::string kReference = TRANSLOAD_SOURCE_DIR "/tests/reference/";

json reference(const std::string& family) { return json::parse(read_whole(kReference + family + "/config.json")); }

ModelConfig parse(const json& config) { return parse_model_config(config.dump(), "config.json"); }

/// What is said of a config with some keys replaced.
std::string refusal(const std::string& family, const json& changes) {
  json config = reference(family);
  config.update(changes);
  return MESSAGE_OF(InputError, parse(config));
}

std::uint64_t total(const std::vector<ParamSpec>& params) {
  std::uint64_t elements = 0;
  for (const ParamSpec& param : params) {
    std::uint64_t product = 1;
    for (const std::uint64_t size : param.shape) product *= size;
    elements += product;
  }
  return elements;
}

}  // namespace

TEST_CASE("The reference configs are read", "[config]") {
  const ModelConfig gpt2 = read_model_config(kReference + "gpt2/config.json");
  CHECK(gpt2.family == Family::gpt2);
  CHECK((gpt2.vocab == 259 && gpt2.hidden == 48 && gpt2.layers == 2 && gpt2.heads == 3 && gpt2.kv_heads == 3));
  CHECK((gpt2.head_dim == 16 && gpt2.intermediate == 192 && gpt2.max_positions == 40));
  CHECK((gpt2.tied && gpt2.qkv_bias && gpt2.out_bias && gpt2.mlp_bias));
  CHECK(gpt2.activation == "gelu_new");
  CHECK(gpt2.notes.empty());

  const ModelConfig llama = read_model_config(kReference + "llama/config.json");
  CHECK(llama.family == Family::llama);
  CHECK((llama.kv_heads == 2 && llama.head_dim == 16 && llama.intermediate == 172 && !llama.tied));
  CHECK((!llama.qkv_bias && !llama.out_bias && !llama.mlp_bias));
  CHECK((llama.rope.type == "default" && llama.rope.theta == 10000));

  const ModelConfig qwen2 = read_model_config(kReference + "qwen2/config.json");
  CHECK(qwen2.family == Family::qwen2);
  CHECK((qwen2.tied && qwen2.qkv_bias && !qwen2.out_bias && qwen2.norm_eps == 1e-6 && qwen2.head_dim == 8));
}

TEST_CASE("Both spellings of rotary settings give the same model", "[config]") {
  json before = reference("llama"), now = before;
  const json llama3 = {{"factor", 32.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  before.erase("rope_parameters");
  before["rope_theta"] = 500000.0;
  before["rope_scaling"] = llama3;
  before["rope_scaling"]["rope_type"] = "llama3";
  now["rope_parameters"] = llama3;
  now["rope_parameters"]["rope_type"] = "llama3";
  now["rope_parameters"]["rope_theta"] = 500000;
  const ModelConfig a = parse(before), b = parse(now);
  CHECK(a == b);
  CHECK((a.rope.type == "llama3" && a.rope.theta == 500000 && a.rope.factor == 32));
  CHECK(a.rope.original_max_positions == 8192);

  before["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};  // the oldest way
  CHECK((parse(before).rope.type == "linear" && parse(before).rope.factor == 2));
  before["rope_scaling"] = nullptr;
  CHECK((parse(before).rope.type == "default" && parse(before).rope.theta == 500000));
  before.erase("rope_theta");
  CHECK(parse(before).rope.theta == 10000);
  now["rope_parameters"].erase("original_max_position_embeddings");
  CHECK(parse(now).rope.original_max_positions == 64);
}

TEST_CASE("Rotary settings that contradict or are not supported are refused", "[config]") {
  for (const char* type : {"dynamic", "yarn", "longrope"})
    CHECK_THAT(refusal("llama", {{"rope_parameters", {{"rope_type", type}, {"factor", 2}}}}),
               Contains(type) && Contains("not supported"));
  CHECK_THAT(refusal("llama", {{"rope_theta", 500000.0}}), Contains("500000") && Contains("10000"));
  CHECK_THAT(refusal("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}), Contains("contradict"));
  CHECK_THAT(refusal("llama", {{"rope_parameters", {{"rope_type", "linear"}}}}), Contains("\"factor\" is missing"));
  CHECK_THAT(refusal("llama", {{"partial_rotary_factor", 0.5}}), Contains("partial_rotary_factor"));
  CHECK_THAT(refusal("llama", {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}}),
             Contains("full_attention"));
  CHECK_THAT(
      refusal("llama", {{"rope_parameters",
                         {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}}}),
      Contains("high_freq_factor"));
  CHECK_THAT(refusal("llama", {{"rope_parameters", {{"rope_theta", -1}}}}), Contains("rope_theta"));
}

TEST_CASE("What is not supported is refused by name", "[config]") {
  CHECK_THAT(refusal("llama", {{"model_type", "mistral"}}), Contains("mistral"));
  CHECK_THAT(refusal("llama", {{"architectures", {"LlamaForSequenceClassification"}}}),
             Contains("LlamaForSequenceClassification"));
  CHECK_THAT(refusal("llama", {{"hidden_act", "gelu"}}), Contains("hidden_act gelu"));
  CHECK_THAT(refusal("gpt2", {{"activation_function", "relu"}}), Contains("relu"));
  CHECK_THAT(refusal("gpt2", {{"scale_attn_weights", false}}), Contains("scale_attn_weights"));
  CHECK_THAT(refusal("gpt2", {{"scale_attn_by_inverse_layer_idx", true}}), Contains("inverse_layer_idx"));
  CHECK_THAT(refusal("gpt2", {{"add_cross_attention", true}}), Contains("add_cross_attention"));
  CHECK_THAT(refusal("qwen2", {{"layer_types", {"full_attention", "sliding_attention"}}}),
             Contains("sliding_attention"));
  CHECK_THAT(refusal("qwen2", {{"layer_types", {"full_attention"}}}), Contains("num_hidden_layers (2)"));
  CHECK_THAT(refusal("qwen2", {{"layer_types", nullptr}, {"use_sliding_window", true}, {"max_window_layers", 1}}),
             Contains("sliding window"));
  CHECK_THAT(refusal("llama", {{"sliding_window", 4096}}), Contains("sliding window"));
  CHECK_THAT(refusal("llama", {{"quantization_config", {{"bits", 4}}}}), Contains("quantiz"));
}

TEST_CASE("A window that no layer has is none", "[config]") {
  json config = reference("qwen2");
  config.erase("layer_types");
  config["sliding_window"] = 4096;
  CHECK_NOTHROW(parse(config));  // use_sliding_window is false
  config["use_sliding_window"] = true;
  config["max_window_layers"] = 2;
  CHECK_NOTHROW(parse(config));
}

TEST_CASE("Contradictions and wrong types in a config are refused", "[config]") {
  CHECK_THAT(refusal("llama", {{"num_attention_heads", 5}}), Contains("64") && Contains("5"));
  CHECK_THAT(refusal("llama", {{"num_key_value_heads", 3}}), Contains("num_key_value_heads, 3"));
  CHECK_THAT(refusal("llama", {{"head_dim", 15}}), Contains("even"));
  CHECK_THAT(refusal("llama", {{"vocab_size", 0}}), Contains("vocab_size"));
  CHECK_THAT(refusal("llama", {{"vocab_size", -1}}), Contains("vocab_size"));
  CHECK_THAT(refusal("llama", {{"vocab_size", "307"}}), Contains("vocab_size"));
  CHECK_THAT(refusal("llama", {{"vocab_size", 1e30}}), Contains("vocab_size"));
  CHECK_THAT(refusal("llama", {{"hidden_size", 18446744073709551615u}}), Contains("hidden_size"));
  CHECK_THAT(refusal("llama", {{"hidden_size", nullptr}}), Contains("\"hidden_size\" is missing"));
  CHECK_THAT(refusal("llama", {{"num_hidden_layers", 2000000000}}), Contains("layers"));
  CHECK_THAT(refusal("llama", {{"rms_norm_eps", 0}}), Contains("rms_norm_eps"));
  CHECK_THAT(refusal("llama", {{"tie_word_embeddings", "yes"}}), Contains("tie_word_embeddings"));
  CHECK_THAT(refusal("gpt2", {{"model_type", nullptr}, {"architectures", nullptr}}), Contains("model_type"));
  for (const char* text : {"", "{", "[]", "3", "null", "{\"model_type\": 3}"})
    CHECK_THROWS_AS(parse_model_config(text, "config.json"), InputError);
  CHECK_THAT(MESSAGE_OF(InputError, read_model_config("/nowhere/config.json")), Contains("/nowhere/config.json"));
}

TEST_CASE("Dropout is taken as zero and said", "[config]") {
  json config = reference("gpt2");
  config["resid_pdrop"] = 0.25;
  config.erase("attn_pdrop");  // transformers takes 0.1
  const ModelConfig parsed = parse(config);
  REQUIRE(parsed.notes.size() == 2);
  CHECK_THAT(parsed.notes[0], Contains("resid_pdrop 0.25"));
  CHECK_THAT(parsed.notes[1], Contains("attn_pdrop 0.1"));
  CHECK(parsed == parse(reference("gpt2")));
}

TEST_CASE("A config survives the way out and back in", "[config]") {
  std::vector<ModelConfig> configs;
  for (const std::string& name : model_names()) configs.push_back(named_model(name));
  for (const char* family : {"gpt2", "llama", "qwen2"}) configs.push_back(parse(reference(family)));
  json config = reference("llama");
  config.update({{"attention_bias", true}, {"mlp_bias", true}, {"head_dim", 20}, {"tie_word_embeddings", true}});
  config["rope_parameters"] = {
      {"rope_type", "llama3"},   {"rope_theta", 5e5},         {"factor", 8.1},
      {"low_freq_factor", 1.25}, {"high_freq_factor", 4.125}, {"original_max_position_embeddings", 48}};
  configs.push_back(parse(config));
  config["rope_parameters"] = {{"rope_type", "linear"}, {"rope_theta", 1e4}, {"factor", 3}};
  configs.push_back(parse(config));
  for (const ModelConfig& original : configs)
    for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
      const std::string text = to_hf_config(original, dtype);
      const ModelConfig back = parse_model_config(text, "export");
      CHECK(back == original);
      CHECK(back.carried == original.carried);
      CHECK(back.notes.empty());
      CHECK(json::parse(text)["dtype"] == (dtype == Dtype::bf16 ? "bfloat16" : "float32"));
    }
  CHECK_FALSE(configs[0] == configs[1]);
}

TEST_CASE("Built-in models have the sizes that their names say", "[config]") {
  // As transformers counts the parameters of the published models.
  const std::map<std::string, std::uint64_t> sizes = {
      {"gpt2-124m", 124439808},  {"gpt2-355m", 354823168},   {"gpt2-774m", 774030080}, {"gpt2-1558m", 1557611200},
      {"llama-60m", 58073600},   {"llama-350m", 367969280},  {"llama-1b", 1100048384}, {"llama-7b", 6738415616},
      {"qwen2-0.5b", 494032768}, {"qwen2-1.5b", 1543714304}, {"qwen2-7b", 7615616512}};
  for (const auto& [name, size] : sizes) {
    INFO(name);
    CHECK(total(model_params(named_model(name), {})) == size);
  }
  CHECK(sizes.size() == model_names().size());
  CHECK_THAT(MESSAGE_OF(InputError, named_model("lama-60m")), Contains("nearest name is llama-60m"));
  CHECK_THAT(MESSAGE_OF(InputError, named_model("")), Contains("gpt2-124m"));
}

TEST_CASE("Parameters come in the order of first use and can be frozen", "[config]") {
  const std::vector<ParamSpec> params = model_params(parse(reference("llama")), {"*norm*", "model.layers.0.*"});
  CHECK(params.front().name == "model.embed_tokens.weight");
  CHECK(params[1].name == "model.layers.0.input_layernorm.weight");
  CHECK(params.back().name == "lm_head.weight");
  for (const ParamSpec& param : params)
    CHECK(param.frozen ==
          (param.name.find("norm") != std::string::npos || param.name.find("layers.0.") != std::string::npos));
  CHECK_THAT(MESSAGE_OF(InputError, model_params(parse(reference("llama")), {"lm_haed*"})), Contains("lm_haed*"));
  CHECK_THROWS_AS(model_params(parse(reference("llama")), {"*"}), InputError);
  json untied = reference("gpt2");
  untied["tie_word_embeddings"] = false;
  CHECK(model_params(parse(untied), {}).back().name == "lm_head.weight");
  CHECK(model_params(parse(reference("gpt2")), {}).back().name == "transformer.ln_f.bias");
}
