#include "cli/probe_cache.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>

namespace transload::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string cache_file() { return cache_folder() + "/probe.json"; }

std::string now_text() { return fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(std::time(nullptr))); }

/// A number above 0; 0 for whatever else a damaged file holds.
double number(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() && found->get<double>() > 0 ? found->get<double>() : 0;
}

/// The entry of `folder`, or of the nearest folder above that was measured.
const Json* folder_entry(const Json& folders, fs::path folder) {
  for (folder = fs::absolute(folder).lexically_normal();; folder = folder.parent_path()) {
    const auto found = folders.find(folder.string());
    if (found != folders.end() && found->is_object()) return &*found;
    if (!folder.has_relative_path()) return nullptr;
  }
}

}  // namespace

std::string cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return std::string(cache) + "/transload";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? std::string(home) + "/.cache/transload" : "";
}

ProbeCache::ProbeCache()
    : json_({{"compute", Json::object()}, {"collectives", Json::object()}, {"folders", Json::object()}}) {
  if (cache_folder().empty()) return;
  std::ifstream file(cache_file());
  const Json read = Json::parse(file, nullptr, false);
  for (const char* part : {"compute", "collectives", "folders"})
    if (read.is_object() && read.contains(part) && read[part].is_object()) json_[part] = read[part];
}

MachineRates ProbeCache::rates(const std::string& compute_key, const std::string& folder) const {
  MachineRates rates;
  const auto compute = json_["compute"].find(compute_key);
  if (compute != json_["compute"].end() && compute->is_object()) {
    rates.products = number(*compute, "products_flops_per_s");
    rates.updates = number(*compute, "updates_parameters_per_s");
    rates.links.memory = number(*compute, "memory_bytes_per_s");
    rates.links.host_to_device = number(*compute, "to_device_bytes_per_s");
    rates.links.device_to_host = number(*compute, "from_device_bytes_per_s");
    rates.source = fmt::format("computation as probed at {}", compute->value("date", "?"));
  }
  if (folder.empty()) return rates;
  const Json* drive = folder_entry(json_["folders"], folder);
  if (drive == nullptr) return rates;
  rates.links.nvme_read = number(*drive, "read_bytes_per_s");
  rates.links.nvme_write = number(*drive, "write_bytes_per_s");
  rates.links.nvme_duplex = number(*drive, "duplex_bytes_per_s");
  rates.source += fmt::format("{}the drive at {}", rates.source.empty() ? "" : ", ", drive->value("date", "?"));
  return rates;
}

void ProbeCache::keep_compute(const std::string& compute_key, const ComputeRates& rates) {
  json_["compute"][compute_key] = {{"date", now_text()},
                                   {"products_flops_per_s", rates.products},
                                   {"updates_parameters_per_s", rates.updates},
                                   {"memory_bytes_per_s", rates.memory},
                                   {"to_device_bytes_per_s", rates.to_device},
                                   {"from_device_bytes_per_s", rates.from_device}};
}

CollectiveRates ProbeCache::collectives(const std::string& collective_key) const {
  const auto found = json_["collectives"].find(collective_key);
  if (found == json_["collectives"].end() || !found->is_object()) return {};
  return {.gather = number(*found, "gather_bytes_per_s"), .scatter = number(*found, "scatter_bytes_per_s")};
}

void ProbeCache::keep_collectives(const std::string& collective_key, const CollectiveRates& rates) {
  json_["collectives"][collective_key] = {
      {"date", now_text()}, {"gather_bytes_per_s", rates.gather}, {"scatter_bytes_per_s", rates.scatter}};
}

void ProbeCache::keep_folder(const std::string& folder, double read, double write, double duplex) {
  json_["folders"][fs::absolute(folder).lexically_normal().string()] = {
      {"date", now_text()}, {"read_bytes_per_s", read}, {"write_bytes_per_s", write}, {"duplex_bytes_per_s", duplex}};
}

/// A cache that cannot be written costs a measurement next time, no more.
bool ProbeCache::save() const {
  if (cache_folder().empty()) return false;
  std::error_code error;
  fs::create_directories(cache_folder(), error);
  const std::string fresh = fmt::format("{}.{}", cache_file(), ::getpid());
  {
    std::ofstream file(fresh);
    file << json_.dump(2) << "\n";
    if (!file.flush()) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) fs::rename(fresh, cache_file(), error);
  if (!error) return true;
  fs::remove(fresh, error);
  return false;
}

}  // namespace transload::cli
