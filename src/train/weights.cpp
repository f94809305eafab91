#include "train/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <regex>
#include <set>

#include "base/error.h"
#include "kernels/cpu/random.h"
#include "train/input_file.h"

namespace transload {
namespace {

/// Names without the prefix of the inner model, which some files leave out.
std::string bare_name(const std::string& name, Family family) {
  const std::string prefix = family == Family::gpt2 ? "transformer." : "model.";
  return name.rfind(prefix, 0) == 0 ? name.substr(prefix.size()) : name;
}

/// Buffers that old versions of transformers saved beside the parameters; the model computes them itself.
bool is_buffer(const std::string& bare, Family family) {
  static const std::regex kMasks(R"(h\.\d+\.attn\.(bias|masked_bias))");
  static const std::regex kRotary(R"(layers\.\d+\.self_attn\.rotary_emb\.inv_freq)");
  return std::regex_match(bare, family == Family::gpt2 ? kMasks : kRotary);
}

std::string first_names(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 5;
  const std::vector<std::string> shown(names.begin(), names.begin() + std::min(names.size(), kShown));
  std::string text = fmt::format("{}", fmt::join(shown, ", "));
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

class FolderWeights final : public InitialWeights {
 public:
  FolderWeights(const ModelConfig& config, const std::vector<ParamSpec>& params, const std::string& folder)
      : reader_(SafetensorsReader::open_folder(folder)) {
    std::map<std::string, const TensorInfo*> by_bare_name;
    for (const auto& [name, tensor] : reader_.tensors()) {
      const auto [other, added] = by_bare_name.emplace(bare_name(name, config.family), &tensor);
      if (!added)
        throw InputError(
            fmt::format("{} has both {} and {}, which name the same parameter.", folder, other->second->name, name));
    }
    std::vector<std::string> missing;
    for (const ParamSpec& param : params) {
      const auto found = by_bare_name.find(bare_name(param.name, config.family));
      if (found == by_bare_name.end()) {
        missing.push_back(param.name);
        continue;
      }
      check_tensor(*found->second, param);
      tensors_.emplace(param.name, found->second);
      by_bare_name.erase(found);
    }
    if (!missing.empty())
      throw InputError(
          fmt::format("{} misses weights that its config.json asks for: {}.", folder, first_names(missing)));
    refuse_surplus(config, folder, by_bare_name);
    make_identity();
  }

  void fill(const ParamSpec& param, std::uint64_t begin, std::uint64_t count, float* to) const override {
    const TensorInfo& tensor = *tensors_.at(param.name);
    reader_.read(tensor, begin, count, to);
    const float* const bad = std::find_if_not(to, to + count, [](float v) { return std::isfinite(v); });
    if (bad != to + count)
      throw InputError(fmt::format("Tensor {} of {} holds {} at element {}; a model cannot be trained from it.",
                                   tensor.name, tensor.file, *bad, begin + static_cast<std::uint64_t>(bad - to)));
  }
  std::string identity() const override { return identity_; }

 private:
  static void check_tensor(const TensorInfo& tensor, const ParamSpec& param) {
    if (tensor.shape != param.shape)
      throw InputError(fmt::format("Tensor {} of {} has the shape [{}], but config.json makes it [{}].", tensor.name,
                                   tensor.file, fmt::join(tensor.shape, ", "), fmt::join(param.shape, ", ")));
    if (tensor.stored_as != safetensors_name(tensor.dtype))
      throw InputError(fmt::format("Tensor {} of {} is stored as {}; weights are read from F32, BF16 and F16.",
                                   tensor.name, tensor.file, tensor.stored_as));
  }

  static void refuse_surplus(const ModelConfig& config, const std::string& folder,
                             const std::map<std::string, const TensorInfo*>& unused) {
    std::vector<std::string> surplus;
    const std::vector<std::uint64_t> head_shape = {static_cast<std::uint64_t>(config.vocab),
                                                   static_cast<std::uint64_t>(config.hidden)};
    for (const auto& [bare, tensor] : unused) {
      const bool tied_head = config.tied && bare == "lm_head.weight" && tensor->shape == head_shape;
      if (!tied_head && !is_buffer(bare, config.family)) surplus.push_back(tensor->name);
    }
    if (!surplus.empty())
      throw InputError(
          fmt::format("{} has weights that its config.json has no place for: {}.", folder, first_names(surplus)));
  }

  void make_identity() {
    std::set<std::string> files;
    for (const auto& [name, tensor] : reader_.tensors()) files.insert(tensor.file);
    std::uint64_t bytes = 0, hash = 0;
    for (const std::string& path : files) {
      const InputFile file(path);
      bytes += file.size();
      hash = (hash << 1 | hash >> 63) ^ file.sampled_hash();
    }
    identity_ =
        fmt::format("{} file{}, {} bytes, xxh3 {:016x}", files.size(), files.size() == 1 ? "" : "s", bytes, hash);
  }

  SafetensorsReader reader_;
  std::map<std::string, const TensorInfo*> tensors_;  // by the parameter's name
  std::string identity_;
};

class SeedWeights final : public InitialWeights {
 public:
  SeedWeights(const ModelConfig& config, std::uint64_t seed)
      : stddev_(config.initializer_range),
        residual_stddev_(config.family == Family::gpt2 ? stddev_ / std::sqrt(2.0 * static_cast<double>(config.layers))
                                                       : stddev_),
        seed_(seed) {}

  void fill(const ParamSpec& param, std::uint64_t begin, std::uint64_t count, float* to) const override {
    if (param.shape.size() < 2) {
      std::fill_n(to, count, ends_with(param.name, ".bias") ? 0.0f : 1.0f);
      return;
    }
    const double stddev = ends_with(param.name, "c_proj.weight") ? residual_stddev_ : stddev_;
    kernels::fill_normal(kernels::parameter_key(seed_, param.name), begin, static_cast<std::int64_t>(count),
                         static_cast<float>(stddev), to);
  }
  std::string identity() const override { return fmt::format("seed {}", seed_); }

 private:
  static bool ends_with(const std::string& name, const std::string& end) {
    return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
  }
  double stddev_, residual_stddev_;
  std::uint64_t seed_;
};

}  // namespace

bool has_weights(const std::string& folder) {
  if (path_exists(folder + "/model.safetensors") || path_exists(folder + "/model.safetensors.index.json")) return true;
  static const std::regex kOtherWeights(
      R"(.*\.(safetensors|gguf|h5|msgpack|pt|pth|ckpt|ckpt\.index|npz)|pytorch_model.*\.bin)");
  std::vector<std::string> names;
  if (const std::int64_t result = os::list_folder(folder, &names); result < 0)
    throw IoError({"readdir", folder, "", 0, 0, 0, static_cast<int>(-result), ""});
  for (const std::string& name : names) {
    if (std::regex_match(name, kOtherWeights))
      throw InputError(
          fmt::format("{} has {}, but neither model.safetensors nor model.safetensors.index.json: weights "
                      "in another form are not read. Convert them (save_pretrained of transformers does), "
                      "or move the file away to begin with random weights.",
                      folder, name));
  }
  return false;
}

std::unique_ptr<InitialWeights> weights_from_folder(const ModelConfig& config, const std::vector<ParamSpec>& params,
                                                    const std::string& folder) {
  return std::make_unique<FolderWeights>(config, params, folder);
}

std::unique_ptr<InitialWeights> weights_from_seed(const ModelConfig& config, std::uint64_t seed) {
  return std::make_unique<SeedWeights>(config, seed);
}

}  // namespace transload
