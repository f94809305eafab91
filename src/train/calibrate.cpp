#include "train/calibrate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"

namespace transload {
namespace {

constexpr std::int64_t kMostLayerElements = std::int64_t{4} << 20;
constexpr std::int64_t kMostTokens = 1024;
constexpr std::int64_t kVocabulary = 512;
// Medians of enough steps that others' moments on the machine, and the first and last steps of ranks side by side, do
// not show.
constexpr std::uint64_t kLeastSteps = 7, kMostSteps = 80;
constexpr double kSeconds = 3;

/// Removed with what is in it.
class ScratchRun {
 public:
  explicit ScratchRun(const std::string& below) : path_((std::filesystem::path(below) / "compute-XXXXXX").string()) {
    std::filesystem::create_directories(below);
    if (::mkdtemp(path_.data()) == nullptr) {
      IoError::Details details;
      details.operation = "make a folder";
      details.path = path_;
      details.error = errno;
      throw IoError(details);
    }
  }
  ~ScratchRun() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchRun(const ScratchRun&) = delete;
  ScratchRun& operator=(const ScratchRun&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::int64_t layer_elements(const ModelConfig& c) {
  return c.hidden * (2 * c.heads + 2 * c.kv_heads) * c.head_dim +
         c.hidden * c.intermediate * (c.family == Family::gpt2 ? 2 : 3);
}

/// One layer of the model's shape; heads keep their size and their ratio where the layer has to shrink.
ModelConfig one_layer(ModelConfig config) {
  config.layers = 1;
  config.vocab = std::min(config.vocab, kVocabulary);
  while (layer_elements(config) > kMostLayerElements && config.heads % 2 == 0 && config.kv_heads % 2 == 0 &&
         config.hidden % 2 == 0 && config.intermediate % 2 == 0) {
    config.hidden /= 2;
    config.heads /= 2;
    config.kv_heads /= 2;
    config.intermediate /= 2;
  }
  return config;
}

StepShape few_tokens(StepShape shape) {
  shape.batch = std::clamp<std::int64_t>(kMostTokens / shape.length, 1, shape.batch);
  shape.accumulate = std::min<std::int64_t>(shape.accumulate, 2);  // contributions are summed from the second on
  shape.samples = 0;
  return shape;
}

TrainOptions options_for(const TrainOptions& options, DeviceKind device, const std::string& folder) {
  TrainOptions own;
  own.model = folder;
  own.data = folder + "/data.bin";
  own.run = folder + "/run-" + name_of(device);
  own.steps = kMostSteps;
  own.shape = few_tokens(options.shape);
  own.dtype = options.dtype;
  own.gradients = options.gradients;
  own.threads = options.threads;
  own.device = device;
  own.nvme_capacity = 0;
  return own;
}

void write_inputs(const ModelConfig& config, const TrainOptions& own) {
  std::ofstream(own.model + "/config.json") << to_hf_config(config, own.dtype);
  std::vector<std::uint16_t> ids(static_cast<std::size_t>(
      (own.shape.batch * own.shape.accumulate * static_cast<std::int64_t>(kMostSteps) + 1) * own.shape.length + 1));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::uint16_t>(i * 7919 % static_cast<std::size_t>(config.vocab));
  std::ofstream(own.data, std::ios::binary)
      .write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * sizeof ids[0]));
}

struct Measured {
  nlohmann::json summary;
  std::uint64_t trainable = 0;
};
Measured train_a_while(const TrainOptions& own) {
  std::atomic<int> interrupt{0};
  const auto start = std::chrono::steady_clock::now();
  Observer observer;
  observer.stepped = [&](const StepReport& step) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    if (step.step >= kLeastSteps && passed.count() > kSeconds) interrupt = 1;
  };
  Trainer trainer(own, observer);
  return {nlohmann::json::parse(trainer.run(interrupt)), trainer.plan().trainable};
}

double products_of(const Measured& measured, const ModelConfig& config, const StepShape& shape) {
  const nlohmann::json& took = measured.summary["compute_s"];
  return step_flops(config, shape) / (took["forward"].get<double>() + took["backward"].get<double>());
}

}  // namespace

std::string compute_key(const ModelConfig& config, const TrainOptions& options) {
  const StepShape shape = few_tokens(options.shape);
  return fmt::format(
             "{} family {} hidden {} heads {}/{} of {} intermediate {} length {} batch {} x {} {} {} threads {}",
             name_of(options.device), static_cast<int>(config.family), config.hidden, config.heads, config.kv_heads,
             config.head_dim, config.intermediate, shape.length, shape.batch, shape.accumulate,
             shape.recompute == Recompute::layer ? "recomputed" : "kept", name_of(options.dtype), options.threads) +
         (options.ranks_here > 1 ? fmt::format(" beside {} other ranks", options.ranks_here - 1) : "");
}

ComputeRates measure_compute(const ModelConfig& config, const TrainOptions& options, const std::string& below) {
  const ScratchRun scratch(below);
  const ModelConfig small = one_layer(config);
  // Updates and copies of an emulated device are the processor's; its products wait in streams.
  const DeviceKind device = options.device == DeviceKind::cuda ? DeviceKind::cuda : DeviceKind::cpu;
  const TrainOptions own = options_for(options, device, scratch.path());
  write_inputs(small, own);
  const Measured measured = train_a_while(own);
  const nlohmann::json& summary = measured.summary;
  ComputeRates rates;
  rates.products = products_of(measured, small, own.shape);
  rates.updates = static_cast<double>(measured.trainable) / summary["compute_s"]["update"].get<double>();
  rates.memory = summary["memory_rate"].get<double>();
  rates.to_device = summary["links"]["host_to_device"]["measured_rate"].get<double>();
  rates.from_device = summary["links"]["device_to_host"]["measured_rate"].get<double>();
  if (options.device != DeviceKind::emulated) return rates;
  const TrainOptions emulated = options_for(options, DeviceKind::emulated, scratch.path());
  rates.products = products_of(train_a_while(emulated), small, emulated.shape);
  return rates;
}

}  // namespace transload
