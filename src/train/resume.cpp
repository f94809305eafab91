#include "train/resume.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/size.h"
#include "train/run_folder.h"

namespace transload {

using Json = nlohmann::json;

namespace {

const char* name_of(Order order) { return order == Order::shuffled ? "shuffled" : "sequential"; }
const char* name_of(Schedule s) {
  return s == Schedule::constant ? "constant" : s == Schedule::linear ? "linear" : "cosine";
}

/// "vocab_size 512 instead of 256, …" for the keys of two flat objects that differ.
std::string differences(const Json& now, const Json& before) {
  std::string text;
  const auto add = [&](const std::string& key, const std::string& a, const std::string& b) {
    text += fmt::format("{}{} {} instead of {}", text.empty() ? "" : ", ", key, a, b);
  };
  for (const auto& [key, value] : now.items())
    if (!before.contains(key))
      add(key, value.dump(), "nothing");
    else if (before[key] != value)
      add(key, value.dump(), before[key].dump());
  for (const auto& [key, value] : before.items())
    if (!now.contains(key)) add(key, "missing", value.dump());
  return text;
}

void refuse(const std::string& run, const std::string& what, const std::string& differs) {
  throw InputError(
      fmt::format("--resume: {} is not what run {} was trained with: {}. Give what it began with, or begin "
                  "another run.",
                  what, run, differs));
}

void check_model(const TrainOptions& options, const ModelConfig& config, const CheckpointMeta& meta) {
  if (options.dtype != meta.dtype)
    refuse(options.run, "--dtype",
           fmt::format("{} instead of {}", transload::name_of(options.dtype), transload::name_of(meta.dtype)));
  const ModelConfig before = parse_model_config(meta.model_json, "the store of " + options.run);
  if (config == before) return;
  const std::string differs =
      differences(Json::parse(to_hf_config(config, options.dtype)), Json::parse(to_hf_config(before, options.dtype)));
  refuse(options.run, "the model", differs.empty() ? "another model" : differs);
}

void check_freeze(const TrainOptions& options, const ModelConfig& config, const Layout& before) {
  const std::vector<ParamSpec> now = model_params(config, options.freeze);
  for (std::size_t i = 0; i < now.size() && i < before.params().size(); ++i)
    if (now[i].frozen != before.params()[i].frozen)
      refuse(options.run, "--freeze",
             fmt::format("{} is {} instead of {}", now[i].name, now[i].frozen ? "frozen" : "trained",
                         now[i].frozen ? "trained" : "frozen"));
}

/// What fixes the first weights and which samples come when; the rest of the settings may differ.
void check_identity(const TrainOptions& options, const Inputs& inputs, const CheckpointMeta& meta, const Json& hyper) {
  if (options.seed != meta.seed)
    refuse(options.run, "--seed", fmt::format("{} instead of {}", options.seed, meta.seed));
  if (inputs.weights->identity() != meta.model_identity)
    refuse(options.run, "--model " + options.model,
           fmt::format("weights of {} instead of {}", inputs.weights->identity(), meta.model_identity));
  const Json now = Json::parse(hyper_json(options));
  for (const char* key : {"sequence-length", "order"})
    if (now[key] != hyper.value(key, now[key]))
      refuse(options.run, std::string("--") + key, fmt::format("{} instead of {}", now[key].dump(), hyper[key].dump()));
}

std::vector<std::string> changes(const TrainOptions& options, const CheckpointMeta& meta, const Json& hyper) {
  std::vector<std::string> notes;
  const Json now = Json::parse(hyper_json(options));
  for (const auto& [key, value] : now.items())
    if (hyper.contains(key) && hyper[key] != value)
      notes.push_back(fmt::format("--{} is {} from here on; it was {}.", key, value.dump(), hyper[key].dump()));
  if (options.gradients != meta.gradients)
    notes.push_back(fmt::format("--gradients is {} from here on; it was {}.", transload::name_of(options.gradients),
                                transload::name_of(meta.gradients)));
  return notes;
}

}  // namespace

std::string hyper_json(const TrainOptions& o) {
  return Json{{"sequence-length", o.shape.length},
              {"order", name_of(o.order)},
              {"batch-size", o.shape.batch},
              {"accumulate", o.shape.accumulate},
              {"steps", o.steps},
              {"learning-rate", o.learning_rate},
              {"min-learning-rate", o.min_learning_rate},
              {"schedule", name_of(o.schedule)},
              {"warmup-steps", o.warmup_steps},
              {"weight-decay", o.weight_decay},
              {"clip-norm", o.clip_norm},
              {"betas", {o.beta1, o.beta2}},
              {"epsilon", o.epsilon}}
      .dump();
}

ResumePoint resume_point(const TrainOptions& options, const Inputs& inputs, CheckpointMeta meta) {
  ResumePoint point;
  point.meta = std::move(meta);
  const Layout before = Layout::from_json(point.meta.layout_json);
  const Json hyper = Json::parse(point.meta.hyper_json);
  check_model(options, inputs.config, point.meta);
  check_freeze(options, inputs.config, before);
  check_identity(options, inputs, point.meta, hyper);
  point.notes = changes(options, point.meta, hyper);
  point.chunk_bytes = options.chunk_size != 0 ? options.chunk_size : before.chunk_bytes();
  if (point.chunk_bytes != before.chunk_bytes())
    point.notes.push_back(fmt::format("--chunk-size is {} from here on; it was {}: the state is copied to a new store.",
                                      format_size(point.chunk_bytes), format_size(before.chunk_bytes())));
  if (point.meta.steps_seen < options.steps)
    point.notes.insert(point.notes.begin(),
                       fmt::format("Goes on from step {} of {}.", point.meta.steps_seen, options.run));
  if (point.meta.steps_seen >= options.steps)
    point.notes.push_back(
        fmt::format("The run has been through {} steps already and --steps is {}: nothing is left to "
                    "do.",
                    point.meta.steps_seen, options.steps));
  return point;
}

void check_resumed_data(const TrainOptions& options, const Inputs& inputs, const ResumePoint& point) {
  if (inputs.data->identity() != point.meta.data_identity)
    refuse(options.run, "--data " + options.data,
           fmt::format("{} instead of {}", inputs.data->identity(), point.meta.data_identity));
}

std::vector<StoredBlock> stored_blocks(const Manifest& manifest, const Layout& layout, std::size_t blocks) {
  const CheckpointMeta meta = parse_meta(manifest.metadata, "the store");
  const Layout before = Layout::from_json(meta.layout_json);
  std::vector<StoredBlock> stored(blocks);
  for (std::size_t b = 0; b < layout.blocks().size(); ++b) {
    if (!layout.blocks()[b].durable) continue;
    const BlockId id(b);
    const std::string& plane = layout.planes()[static_cast<std::size_t>(layout.plane_of(id))].name;
    const BlockId old = before.block(layout.chunk_of(id), before.plane(plane));
    if (!old.valid() || old.value >= manifest.blocks.size())
      throw DamageError(fmt::format("The last commit lacks {}.", layout.blocks()[b].name));
    stored[b] = manifest.blocks[old.value];
  }
  return stored;
}

}  // namespace transload
