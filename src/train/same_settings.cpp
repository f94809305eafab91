#include "train/same_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "train/run_folder.h"

namespace transload {
namespace {

using Values = std::map<std::string, std::string>;

constexpr const char* kOwn[] = {"model",         "data",      "run",  "validation",    "threads", "host-memory",
                                "device-memory", "link-rate", "nvme", "nvme-capacity", "io",      "timeout"};

std::string text_of(const Values& values, const std::string& key) {
  const auto at = values.find(key);
  return at == values.end() ? fmt::format("no {}", key) : fmt::format("{} {}", key, at->second);
}

/// The first value that a rank has otherwise than rank 0.
void compare(const Values& mine, Communicator& communicator) {
  if (communicator.size() == 1) return;
  const std::vector<std::string> texts = communicator.all_gather_strings(nlohmann::json(mine).dump());
  const Values first = nlohmann::json::parse(texts.front()).get<Values>();
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    const Values other = nlohmann::json::parse(texts[rank]).get<Values>();
    Values both = first;
    both.insert(other.begin(), other.end());
    for (const auto& [key, ignored] : both)
      if (const std::string a = text_of(first, key), b = text_of(other, key); a != b)
        throw InputError(
            fmt::format("Rank 0 has {}, and rank {} has {}. Start all ranks with the same settings.", a, rank, b));
  }
}

}  // namespace

void check_same_settings(const TrainOptions& options, Communicator& communicator) {
  Values values{{"resume", options.resume ? "true" : "false"},
                {"nvme-capacity", options.nvme_capacity == 0 ? "0" : "above 0"}};
  std::istringstream lines(config_toml(options));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find(" = ");
    const std::string key = line.substr(0, equals);
    if (equals == std::string::npos || line.front() == '#' || std::ranges::find(kOwn, key) != std::end(kOwn)) continue;
    values[key] = line.substr(equals + 3);
  }
  compare(values, communicator);
}

void check_same_inputs(const Inputs& inputs, Communicator& communicator) {
  compare({{"model of", inputs.weights->identity()},
           {"data of", inputs.data->identity()},
           {"validation data of", inputs.validation ? inputs.validation->identity() : "none"}},
          communicator);
}

}  // namespace transload
