// The settings of a run: one table for the flags of `train` and `plan` and for the keys of a TOML file. Flags win over
// --config, which wins over the run folder's own config.toml (read by --resume), which wins over the defaults.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "train/trainer.h"

namespace transload::cli {

struct Setting {
  std::string name;         ///< "host-memory": a flag without its dashes, and a TOML key
  std::string placeholder;  ///< "SIZE"; empty: a switch
  std::string group;        ///< heading in --help
  std::string help;
  bool repeats = false;  ///< may be given several times
  /// Sets the option from text; `what` names the flag or the key for messages. A switch gets "true" or "false".
  std::function<void(TrainOptions&, const std::string& value, const std::string& what)> apply;
};
const std::vector<Setting>& settings();
std::vector<std::string> setting_names();
/// InputError naming the nearest known name where there is no such setting.
const Setting& find_setting(const std::string& name, const std::string& what, const std::string& prefix);

/// Text of settings as given, by name, with what to call each in messages ("--steps", "steps in run.toml").
struct Given {
  std::vector<std::string> values;
  std::string what;
};
using GivenSettings = std::map<std::string, Given>;

/// Keys of a TOML file. InputError: cannot be read, not TOML (line), an unknown key, a value that is not simple.
GivenSettings read_toml(const std::string& path);

/// Options of all settings, checked against each other. `flags` and `config` are what the user says now; with --resume
/// the run folder's config.toml fills the rest. InputError names the settings that contradict each other.
/// `run_if_none`: the run folder where none is named; empty: one must be.
TrainOptions resolve(const GivenSettings& flags, const GivenSettings& config, const std::string& run_if_none);

}  // namespace transload::cli
