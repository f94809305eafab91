// From settings as given to TrainOptions: TOML, precedence, contradictions.
#include <fmt/format.h>

#include <toml++/toml.h>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/os.h"
#include "base/size.h"
#include "cli/settings.h"
#include "train/input_file.h"

namespace transload::cli {
namespace {

constexpr std::uint64_t kMostConfigBytes = 1 * MiB;

std::string scalar_text(const toml::node& node, const std::string& what) {
  if (const auto* v = node.as_string()) return v->get();
  if (const auto* v = node.as_integer()) return fmt::format("{}", v->get());
  if (const auto* v = node.as_floating_point()) return fmt::format("{}", v->get());
  if (const auto* v = node.as_boolean()) return v->get() ? "true" : "false";
  throw InputError(fmt::format("{} must be a text, a number, or true or false.", what));
}

/// An array stands for a repeated setting (freeze), or for the parts of a value (betas = [0.9, 0.95]).
std::vector<std::string> value_texts(const toml::node& node, const Setting& setting, const std::string& what) {
  const auto* array = node.as_array();
  if (array == nullptr) return {scalar_text(node, what)};
  std::vector<std::string> parts;
  for (const toml::node& element : *array) parts.push_back(scalar_text(element, what));
  if (setting.repeats) return parts;
  std::string joined;
  for (const std::string& part : parts) joined += (joined.empty() ? "" : ",") + part;
  return {joined};
}

bool has(const GivenSettings& given, const std::string& name) { return given.count(name) > 0; }

void fill_from(GivenSettings& to, const GivenSettings& from) { to.insert(from.begin(), from.end()); }

/// What the run was begun with. Settings of the device belong together: with another --device, its sizes go too.
void fill_from_saved(GivenSettings& to, GivenSettings saved) {
  const auto device = to.find("device");
  const auto saved_device = saved.find("device");
  if (device != to.end() && saved_device != saved.end() && device->second.values != saved_device->second.values) {
    saved.erase("device-memory");
    saved.erase("link-rate");
  }
  for (const char* own : {"run", "resume", "nvme"}) saved.erase(own);
  // A schedule that ends where the run ends moves with --steps; nothing else of a saved run contradicts new flags.
  fill_from(to, saved);
}

std::string switch_value(const GivenSettings& given, const std::string& name) {
  const auto found = given.find(name);
  return found == given.end() ? "" : found->second.values.front();
}

/// config.toml and the record hold every setting, and both are UTF-8.
void check_utf8(const std::string& text, const std::string& what) {
  try {
    (void)nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    throw InputError(
        fmt::format("{} is not UTF-8: {}. What a run keeps of its settings could not hold it. Rename the file "
                    "or folder, or reach it through a link.",
                    what, text));
  }
}

void apply_all(const GivenSettings& given, TrainOptions& options) {
  for (const auto& [name, value] : given) {
    const Setting& setting = find_setting(name, value.what, "");
    for (const std::string& text : value.values) {
      check_utf8(text, value.what);
      setting.apply(options, text, value.what);
    }
  }
}

[[noreturn]] void contradiction(const std::string& text) { throw InputError(text); }

void check_inputs(const TrainOptions& o) {
  if (o.run.empty()) contradiction("--run is missing: name the folder of this run, such as --run runs/first.");
  if ((o.model.empty() || o.data.empty()) && os::kind_of(o.run + "/config.toml") == os::PathKind::file)
    contradiction(fmt::format("{} holds a run: say --resume to go on with it.", o.run));
  if (o.model.empty()) contradiction("--model is missing: name a Hugging Face folder or a built-in model.");
  if (o.data.empty()) contradiction("--data is missing: name a text file or a .bin of token ids.");
  if (o.bytes && o.data.ends_with(".bin"))
    contradiction("--bytes and a .bin file contradict each other: " + o.data + " holds token ids, not text.");
  if (o.evaluate_every > 0 && o.validation.empty())
    contradiction("--evaluate-every needs --validation FILE: there is nothing to evaluate on.");
}

void check_training(const TrainOptions& o, const GivenSettings& given) {
  if (o.schedule == Schedule::constant && o.min_learning_rate > 0)
    contradiction("--min-learning-rate contradicts --schedule constant: say --schedule linear or cosine.");
  if (o.schedule != Schedule::constant && o.min_learning_rate > o.learning_rate)
    contradiction(
        fmt::format("--min-learning-rate ({}) is above --learning-rate ({}).", o.min_learning_rate, o.learning_rate));
  if (o.warmup_steps > o.steps && has(given, "warmup-steps"))
    contradiction(fmt::format("--warmup-steps ({}) is above --steps ({}).", o.warmup_steps, o.steps));
}

void check_memory(const TrainOptions& o, const GivenSettings& said) {
  if (o.device == DeviceKind::cpu && o.device_memory > 0)
    contradiction(
        "--device-memory contradicts --device cpu: the processor computes in host memory. Say --host-memory, "
        "or --device cuda or emulated.");
  if (o.device == DeviceKind::cuda && o.link_rate > 0)
    contradiction("--link-rate contradicts --device cuda: a GPU's link is as fast as it is. Leave it out.");
  if (o.device == DeviceKind::cpu && o.link_rate > 0)
    contradiction("--link-rate contradicts --device cpu: there is no link. Say --device emulated, or leave it out.");
  if (has(said, "host-memory") && o.host_memory == 0)
    contradiction("--host-memory must be above 0; leave it out to use what the machine has left.");
  if (has(said, "device-memory") && o.device_memory == 0 && o.device != DeviceKind::cpu)
    contradiction(fmt::format("--device-memory must be above 0; leave it out to use {}.",
                              o.device == DeviceKind::cuda ? "what the GPU has free" : "a quarter of --host-memory"));
  if (o.nvme_capacity == 0) {
    for (const char* name : {"nvme", "commit-every", "export-every", "durability", "io"})
      if (has(said, name))
        contradiction(fmt::format("--{} contradicts --nvme-capacity 0: that means no store at all.", name));
    if (o.resume) contradiction("--resume contradicts --nvme-capacity 0: without a store there is nothing to resume.");
  }
  if (!o.durable && has(said, "commit-every"))
    contradiction("--commit-every contradicts --durability none: nothing is committed before the end.");
}

}  // namespace

GivenSettings read_toml(const std::string& path) {
  toml::table table;
  if (is_folder(path)) throw InputError(fmt::format("{} is a folder, not a TOML file.", path));
  const std::string text = read_text_file(path, kMostConfigBytes);
  try {
    table = toml::parse(text, path);
  } catch (const toml::parse_error& e) {
    throw InputError(fmt::format("{} is not valid TOML: line {}: {}.", path, e.source().begin.line, e.description()));
  }
  GivenSettings given;
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const std::string what = fmt::format("{} in {}", name, path);
    const Setting& setting =
        find_setting(name, fmt::format("The key {} in {} (line {})", name, path, node.source().begin.line), "");
    given[name] = {value_texts(node, setting, what), what};
  }
  return given;
}

/// A step of a resumed run has the samples that it had, on as many ranks as there are now.
void keep_samples(const GivenSettings& said, GivenSettings& given) {
  if (has(said, "accumulate") || has(said, "batch-size")) {
    if (!has(said, "global-batch-size")) given.erase("global-batch-size");
    return;
  }
  if (has(said, "global-batch-size")) {
    given.erase("accumulate");
    return;
  }
  if (has(given, "global-batch-size") || !has(given, "accumulate") || !has(given, "batch-size")) return;
  TrainOptions saved;
  for (const char* name : {"accumulate", "batch-size"})
    find_setting(name, given[name].what, "").apply(saved, given[name].values.front(), given[name].what);
  given["global-batch-size"] = {{std::to_string(saved.shape.accumulate * saved.shape.batch)}, given["accumulate"].what};
  given.erase("accumulate");
}

TrainOptions resolve(const GivenSettings& flags, const GivenSettings& config, const std::string& run_if_none) {
  GivenSettings said = flags;
  fill_from(said, config);
  if (!run_if_none.empty() && !has(said, "run")) said["run"] = {{run_if_none}, "--run"};
  GivenSettings given = said;
  const std::string run = switch_value(given, "run");
  if (switch_value(given, "resume") == "true" && !run.empty()) {
    const std::string saved = (std::filesystem::path(run) / "config.toml").string();
    if (os::kind_of(saved) != os::PathKind::missing) {
      fill_from_saved(given, read_toml(saved));
      keep_samples(said, given);
    }
  }
  TrainOptions options;
  apply_all(given, options);
  if (!has(given, "gradients")) options.gradients = options.dtype;
  check_inputs(options);
  check_training(options, given);
  check_memory(options, said);
  return options;
}

}  // namespace transload::cli
