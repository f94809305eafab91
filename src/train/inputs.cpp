#include "train/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace transload {

namespace {

void require(bool ok, const std::string& message) {
  if (!ok) throw InputError(message);
}

void check_number(double value, double least, double below, const char* flag) {
  require(std::isfinite(value) && value >= least && value < below,
          fmt::format("{} is {}; it must be at least {}{}.", flag, value, least,
                      std::isfinite(below) ? fmt::format(" and less than {}", below) : ""));
}

void check_optimizer(const TrainOptions& o) {
  check_number(o.learning_rate, 0, INFINITY, "--learning-rate");
  check_number(o.min_learning_rate, 0, INFINITY, "--min-learning-rate");
  require(o.min_learning_rate <= o.learning_rate,
          fmt::format("--min-learning-rate {} is above --learning-rate {}.", o.min_learning_rate, o.learning_rate));
  check_number(o.weight_decay, 0, INFINITY, "--weight-decay");
  check_number(o.beta1, 0, 1, "--betas (the first)");
  check_number(o.beta2, 0, 1, "--betas (the second)");
  check_number(o.epsilon, 0, INFINITY, "--epsilon");
  require(o.epsilon > 0, "--epsilon must be above 0: the update divides by it where a gradient has always been zero.");
  require(std::isfinite(o.clip_norm), "--clip-norm must be a number; 0 means no clipping.");
}

void check_shape(const StepShape& shape) {
  const auto positive = [](std::int64_t value, const char* flag) {
    require(value >= 1, fmt::format("{} is {}; it must be at least 1.", flag, value));
  };
  positive(shape.batch, "--batch-size");
  positive(shape.length, "--sequence-length");
  positive(shape.accumulate, "--accumulate");
}

bool is_text(const std::string& path) { return !path.ends_with(".bin"); }

/// A folder's config, or a built-in shape; begun from scratch on text the latter speaks bytes.
ModelConfig open_config(const TrainOptions& options) {
  if (is_folder(options.model)) return read_model_config(options.model + "/config.json");
  ModelConfig config = named_model(options.model);
  if (is_text(options.data)) {
    if (!options.resume)
      config.notes.push_back(
          fmt::format("{} begins from scratch on text by bytes: its vocabulary is 256 instead of {}.", options.model,
                      config.vocab));
    config.vocab = 256;
  }
  return config;
}

std::unique_ptr<InitialWeights> open_weights(const TrainOptions& options, ModelConfig& config,
                                             const std::vector<ParamSpec>& params) {
  if (is_folder(options.model) && has_weights(options.model)) return weights_from_folder(config, params, options.model);
  if (!options.resume) config.notes.push_back(fmt::format("Weights begin at random from --seed {}.", options.seed));
  return weights_from_seed(config, options.seed);
}

/// Reads all ids once: an id beyond the vocabulary is found before training, with its position.
void read_through(const TokenFile& file) {
  if (file.is_text()) return;
  constexpr std::uint64_t kAtOnce = 1 << 20;
  std::vector<std::int32_t> ids(std::min(kAtOnce, file.tokens()));
  for (std::uint64_t first = 0; first < file.tokens(); first += kAtOnce)
    file.read(first, std::min(kAtOnce, file.tokens() - first), ids.data());
}

}  // namespace

void check_settings(const TrainOptions& options) {
  require(!options.model.empty(), "--model is missing: a folder with config.json, or a built-in name.");
  require(!options.data.empty(), "--data is missing: a UTF-8 text, or a .bin file of token ids.");
  require(options.steps >= 1, "--steps must be at least 1.");
  check_shape(options.shape);
  check_optimizer(options);
  require(options.threads >= 0, fmt::format("--threads is {}; it must be at least 1.", options.threads));
  require(options.commit_every.steps > 0 || options.commit_every.seconds > 0,
          "--commit-every must be a number of steps or a time above 0.");
  require(options.evaluate_every == 0 || !options.validation.empty(),
          "--evaluate-every needs a --validation file to evaluate on.");
  const bool stored = options.nvme_capacity > 0;
  require(stored || !options.resume, "--resume needs the store that --nvme-capacity 0 leaves out.");
  require(stored || options.export_every == 0, "--export-every needs the store that --nvme-capacity 0 leaves out.");
  require(
      options.device != DeviceKind::cpu || options.device_memory == 0,
      "--device-memory is for --device cuda or --device emulated: on the CPU the processor computes in host memory.");
}

Inputs open_model(const TrainOptions& options) {
  Inputs in;
  in.config = open_config(options);
  const std::vector<ParamSpec> params = model_params(in.config, options.freeze);
  require(std::any_of(params.begin(), params.end(), [](const ParamSpec& p) { return !p.frozen && p.elements() > 0; }),
          "--freeze leaves no parameter to train.");
  require(in.config.family != Family::gpt2 || options.shape.length <= in.config.max_positions,
          fmt::format("--sequence-length {} is above the {} positions that the model has.", options.shape.length,
                      in.config.max_positions));
  in.weights = open_weights(options, in.config, params);
  return in;
}

void open_data(const TrainOptions& options, Inputs& in) {
  const auto open = [&](const std::string& path, Order order, std::unique_ptr<TokenFile>& file,
                        std::unique_ptr<SampleOrder>& samples) {
    file = std::make_unique<TokenFile>(path, in.config.vocab, options.bytes);
    samples = std::make_unique<SampleOrder>(file->tokens(), options.shape.length, order, options.seed, path);
    read_through(*file);
  };
  open(options.data, options.order, in.data, in.order);
  if (!options.validation.empty()) open(options.validation, Order::sequential, in.validation, in.validation_order);
}

SampleRun samples_of(std::uint64_t samples, std::uint32_t rank, std::uint32_t ranks) {
  const std::uint64_t each = samples / ranks, more = samples % ranks;
  return {rank * each + std::min<std::uint64_t>(rank, more), each + (rank < more ? 1 : 0)};
}

void read_batches(const TokenFile& file, const SampleOrder& order, std::uint64_t first, std::uint64_t samples,
                  const StepShape& shape, std::vector<MicroBatch>& batches) {
  const auto length = static_cast<std::size_t>(shape.length), batch = static_cast<std::size_t>(shape.batch);
  std::vector<std::int32_t> ids(length + 1);
  for (MicroBatch& micro : batches) {
    micro.inputs.assign(batch * length, 0);
    micro.targets.assign(batch * length, -1);
    for (std::size_t row = 0; row < batch && samples > 0; ++row, --samples) {
      file.read(order.sample(first++) * length, length + 1, ids.data());
      std::copy_n(ids.begin(), length, micro.inputs.begin() + static_cast<std::ptrdiff_t>(row * length));
      std::copy_n(ids.begin() + 1, length, micro.targets.begin() + static_cast<std::ptrdiff_t>(row * length));
    }
  }
}

}  // namespace transload
