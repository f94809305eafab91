// The manifest's metadata: JSON in the manifest, CheckpointMeta in memory.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "train/checkpoint.h"
#include "train/json_keys.h"

namespace transload {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kFormat = 1;

Json embedded(const std::string& text) { return text.empty() ? Json() : Json::parse(text); }
std::string text_of(const Json& json) { return json.is_null() ? "" : json.dump(); }

Dtype dtype_from(const JsonKeys& keys, const char* key) {
  const std::string name = keys.text(key);
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    if (name == name_of(dtype)) return dtype;
  keys.refuse(fmt::format("\"{}\" is {}, but must be fp32 or bf16.", key, name));
}

CheckpointMeta parse(const JsonKeys& keys) {
  keys.require_format(kFormat);
  CheckpointMeta meta;
  meta.step = keys.count("step");
  meta.steps_seen = keys.count("steps_seen");
  meta.samples_seen = keys.count("samples_seen");
  meta.seed = keys.count("seed");
  meta.skipped_in_a_row = keys.count("skipped_in_a_row");
  meta.model_json = text_of(keys.object("model").json());
  meta.dtype = dtype_from(keys, "dtype");
  meta.gradients = dtype_from(keys, "gradients");
  meta.layout_json = text_of(keys.object("layout").json());
  meta.model_identity = keys.text("model_identity");
  meta.data_identity = keys.text("data_identity");
  if (keys.has("hyper")) meta.hyper_json = text_of(keys.at("hyper"));
  meta.tokenizer = keys.text("tokenizer");
  meta.run_id = keys.text("run_id", "");
  if (keys.has("group")) meta.group = keys.count("group");
  if (!keys.at("step_counts").is_array()) keys.refuse("\"step_counts\" must be a list.");
  for (const Json& steps : keys.at("step_counts")) {
    if (!steps.is_number_unsigned()) keys.refuse("\"step_counts\" has something that is not a count.");
    meta.step_counts.push_back(steps.get<std::uint64_t>());
  }
  return meta;
}

}  // namespace

std::string to_json(const CheckpointMeta& meta) {
  return Json{{"format", kFormat},
              {"step", meta.step},
              {"steps_seen", meta.steps_seen},
              {"samples_seen", meta.samples_seen},
              {"seed", meta.seed},
              {"skipped_in_a_row", meta.skipped_in_a_row},
              {"model", embedded(meta.model_json)},
              {"dtype", name_of(meta.dtype)},
              {"gradients", name_of(meta.gradients)},
              {"layout", embedded(meta.layout_json)},
              {"model_identity", meta.model_identity},
              {"data_identity", meta.data_identity},
              {"hyper", embedded(meta.hyper_json)},
              {"step_counts", meta.step_counts},
              {"tokenizer", meta.tokenizer},
              {"run_id", meta.run_id},
              {"group", meta.group}}
      .dump();
}

CheckpointMeta parse_meta(const std::string& json_text, const std::string& where) {
  try {
    const Json parsed = parse_json_object(json_text, fmt::format("the manifest's metadata of {}", where));
    return parse(JsonKeys(parsed, where));
  } catch (const InputError& error) {
    throw DamageError(fmt::format("The manifest cannot be understood. {}", error.what()));
  }
}

}  // namespace transload
