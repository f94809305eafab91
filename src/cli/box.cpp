#include "cli/box.h"

#include <fmt/format.h>

#include <toml++/toml.h>
#include <map>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/size.h"
#include "cli/nearest.h"
#include "cli/values.h"
#include "train/input_file.h"

namespace transload::cli {
namespace {

constexpr std::uint64_t kMostBytes = 1 * MiB;
constexpr double kMostRate = 1e15;
constexpr double kUpdateBytes = 26;  // that the update of a parameter moves in host memory

enum class Kind { size, rate, flops, fraction, time };
struct Key {
  const char* name;
  Kind kind;
  double Box::*field;
};
constexpr Key kKeys[] = {
    {"device.memory", Kind::size, &Box::device_memory},
    {"device.compute", Kind::flops, &Box::device_compute},
    {"device.reached", Kind::fraction, &Box::device_reached},
    {"device.to", Kind::rate, &Box::to_device},
    {"device.from", Kind::rate, &Box::from_device},
    {"host.memory", Kind::size, &Box::host_memory},
    {"host.bandwidth", Kind::rate, &Box::host_bandwidth},
    {"host.compute", Kind::flops, &Box::host_compute},
    {"host.reached", Kind::fraction, &Box::host_reached},
    {"nvme.capacity", Kind::size, &Box::nvme_capacity},
    {"nvme.read", Kind::rate, &Box::nvme_read},
    {"nvme.write", Kind::rate, &Box::nvme_write},
    {"nvme.duplex", Kind::rate, &Box::nvme_duplex},
    {"nvme.endurance", Kind::size, &Box::nvme_endurance},
    {"network.bandwidth", Kind::rate, &Box::network_bandwidth},
    {"network.latency", Kind::time, &Box::network_latency_s},
};

/// "165TFLOP/s".
double parse_flops(const std::string& text, const std::string& what) {
  for (const auto& [unit, factor] : {std::pair{"GFLOP/s", 1e9}, {"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}})
    if (text.ends_with(unit)) {
      const std::string number = text.substr(0, text.size() - std::string(unit).size());
      const double value = parse_number(number, what, 0, 1e9);
      if (value > 0) return value * factor;
    }
  throw InputError(fmt::format("{} must be above 0 and written as 165TFLOP/s (G, T or P), not \"{}\".", what, text));
}

/// "5us".
double parse_latency(const std::string& text, const std::string& what) {
  for (const auto& [unit, factor] : {std::pair{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}})
    if (text.ends_with(unit)) return parse_number(text.substr(0, text.size() - 2), what, 0, 1e6) * factor;
  throw InputError(fmt::format("{} must be written as 5us (ns, us or ms), not \"{}\".", what, text));
}

double parse_value(Kind kind, const std::string& text, const std::string& what) {
  switch (kind) {
    case Kind::size: {
      const auto bytes = static_cast<double>(parse_size(text, what));
      if (bytes <= 0) throw InputError(fmt::format("{} must be above 0.", what));
      return bytes;
    }
    case Kind::rate: {
      const double rate = parse_rate(text, what);
      if (rate > kMostRate) throw InputError(fmt::format("{} must be at most 1000TB/s, not \"{}\".", what, text));
      return rate;
    }
    case Kind::flops:
      return parse_flops(text, what);
    case Kind::fraction: {
      const double part = parse_number(text, what, 0, 1);
      if (part <= 0) throw InputError(fmt::format("{} must be above 0.", what));
      return part;
    }
    case Kind::time:
      return parse_latency(text, what);
  }
  return 0;
}

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  Box read() {
    if (is_folder(path_)) throw InputError(fmt::format("{} is a folder, not a box file.", path_));
    toml::table table;
    try {
      table = toml::parse(read_text_file(path_, kMostBytes), path_);
    } catch (const toml::parse_error& e) {
      throw InputError(fmt::format("{}, line {}: {}.", path_, e.source().begin.line, e.description()));
    }
    for (const auto& [key, node] : table) take(std::string(key.str()), node);
    check();
    return box_;
  }

 private:
  std::string at(std::uint64_t line) const { return fmt::format("{}, line {}: ", path_, line); }

  static std::string text_of(const toml::node& node, const std::string& what) {
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
    if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
    throw InputError(fmt::format("{} must be a text or a number.", what));
  }

  void take(const std::string& name, const toml::node& node) {
    if (const auto* section = node.as_table()) {
      for (const auto& [key, inner] : *section) take(fmt::format("{}.{}", name, std::string(key.str())), inner);
      return;
    }
    const std::uint64_t line = node.source().begin.line;
    const std::string what = at(line) + name;
    if (name == "name" || name == "source") {
      if (!node.is_string()) throw InputError(fmt::format("{} must be a text.", what));
      (name == "name" ? box_.name : box_.source) = text_of(node, what);
      return;
    }
    for (const Key& key : kKeys) {
      if (name != key.name) continue;
      box_.*key.field = parse_value(key.kind, text_of(node, what), what);
      lines_[name] = line;
      return;
    }
    std::vector<std::string> known{"name", "source"};
    for (const Key& key : kKeys) known.emplace_back(key.name);
    throw InputError(fmt::format("{} is not a key of a box file.{}", what, did_you_mean(name, known, "")));
  }

  bool has(const std::string& name) const { return lines_.count(name) > 0; }
  void need(const std::string& name, const std::string& because) const {
    if (has(name)) return;
    const std::string where = has(because) ? at(lines_.at(because)) : path_ + ": ";
    throw InputError(
        fmt::format("{}{} is missing{}.", where, name, has(because) ? fmt::format(", which {} needs", because) : ""));
  }

  void check() const {
    if (box_.source.empty())
      throw InputError(
          fmt::format("{}: source is missing: say where the rates are from, or that they are assumed.", path_));
    need("host.memory", "");
    for (const Key& key : kKeys) {
      const std::string name = key.name;
      if (!has(name)) continue;
      if (name.starts_with("device."))
        for (const char* other : {"device.memory", "device.compute", "device.to", "device.from"}) need(other, name);
      if (name.starts_with("nvme."))
        for (const char* other : {"nvme.capacity", "nvme.read", "nvme.write"}) need(other, name);
    }
    if (!box_.has_device()) need("host.compute", "host.memory");
    need("host.bandwidth", "host.memory");
    if (has("nvme.duplex") && box_.nvme_duplex > (box_.nvme_read + box_.nvme_write) * 1.0001)
      throw InputError(
          fmt::format("{}nvme.duplex is above nvme.read and nvme.write in sum.", at(lines_.at("nvme.duplex"))));
    if (has("network.latency")) need("network.bandwidth", "network.latency");
  }

  const std::string path_;
  Box box_;
  std::map<std::string, std::uint64_t> lines_;  // of the keys that are there
};

}  // namespace

Box read_box(const std::string& path) { return Reader(path).read(); }

void fill_from_box(const Box& box, GivenSettings& given) {
  const auto set = [&](const char* name, const std::string& value) {
    given.insert({name, {{value}, fmt::format("--{}", name)}});
  };
  const auto bytes = [](double n) { return fmt::format("{}", static_cast<std::uint64_t>(n)); };
  set("device", box.has_device() ? "emulated" : "cpu");
  const bool device = given.at("device").values.front() != "cpu";
  if (device && box.has_device()) set("device-memory", bytes(box.device_memory));
  set("host-memory", bytes(box.host_memory));
  set("nvme-capacity", bytes(box.nvme_capacity));
}

MachineRates rates_of(const Box& box) {
  MachineRates rates;
  rates.links = {.nvme_read = box.nvme_read,
                 .nvme_write = box.nvme_write,
                 .nvme_duplex = box.nvme_duplex,
                 .host_to_device = box.to_device,
                 .device_to_host = box.from_device,
                 .memory = box.host_bandwidth};
  rates.products = box.has_device() ? box.device_compute * box.device_reached : box.host_compute * box.host_reached;
  rates.updates = box.host_bandwidth / kUpdateBytes;
  rates.source = fmt::format("{}: {}", box.name.empty() ? "box" : box.name, box.source);
  return rates;
}

std::string best_case_text(const Box& box) {
  const char* where = box.has_device() ? "device" : "host";
  if ((box.has_device() ? box.device_reached : box.host_reached) < 1) return "";
  return fmt::format(
      "{0}.compute is taken as reached in full: a best case. Say {0}.reached in the box file (0.4 to 0.8 of a peak are "
      "common).",
      where);
}

}  // namespace transload::cli
