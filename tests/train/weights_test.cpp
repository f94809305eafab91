#include "train/weights.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "temp_folder.h"

using namespace transload;
using Catch::Matchers::Contains;

namespace {

const std::string kReference = TRANSLOAD_SOURCE_DIR "/tests/reference/";

std::uint64_t elements(const ParamSpec& param) {
  std::uint64_t product = 1;
  for (const std::uint64_t size : param.shape) product *= size;
  return product;
}

std::vector<float> values(const InitialWeights& weights, const ParamSpec& param) {
  std::vector<float> all(elements(param));
  weights.fill(param, 0, all.size(), all.data());
  return all;
}

/// A folder with a file of these tensors; element i of each is i.
void write_model(const TempFolder& folder, const std::vector<SafetensorsWriter::Entry>& entries) {
  SafetensorsWriter writer(folder.path("model.safetensors"), entries, {});
  for (const auto& entry : entries) {
    std::uint64_t count = 1;
    for (const std::uint64_t size : entry.shape) count *= size;
    std::vector<float> data(count);
    for (std::uint64_t i = 0; i < count; ++i) data[i] = static_cast<float>(i);
    writer.append(data.data(), count * size_of(entry.dtype));
  }
  writer.finish();
}

std::vector<SafetensorsWriter::Entry> entries_of(const std::vector<ParamSpec>& params) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const ParamSpec& param : params) entries.push_back({param.name, Dtype::f32, param.shape});
  return entries;
}

}  // namespace

TEST_CASE("The weights of the reference cases load", "[weights]") {
  for (const char* family : {"gpt2", "llama", "qwen2"}) {
    const ModelConfig config = read_model_config(kReference + family + "/config.json");
    const std::vector<ParamSpec> params = model_params(config, {});
    CHECK(has_weights(kReference + family));
    const auto weights = weights_from_folder(config, params, kReference + family);
    const SafetensorsReader reader = SafetensorsReader::open_folder(kReference + family);
    CHECK(reader.tensors().size() == params.size());
    for (const ParamSpec& param : params) {
      std::vector<float> expected(elements(param));
      reader.read(reader.tensors().at(param.name), 0, expected.size(), expected.data());
      const std::vector<float> all = values(*weights, param);
      CHECK(std::memcmp(all.data(), expected.data(), 4 * all.size()) == 0);
      float last = 0;
      weights->fill(param, all.size() - 1, 1, &last);
      CHECK(last == all.back());
    }
    CHECK_THAT(weights->identity(), Contains(family == std::string("llama") ? "4 files" : "1 file,"));
    CHECK(weights->identity() == weights_from_folder(config, params, kReference + family)->identity());
  }
}

TEST_CASE("Names are found with and without the prefix", "[weights]") {
  const ModelConfig config = read_model_config(kReference + "gpt2/config.json");
  const std::vector<ParamSpec> params = model_params(config, {});
  std::vector<SafetensorsWriter::Entry> entries = entries_of(params);
  for (auto& entry : entries) entry.name = entry.name.substr(std::strlen("transformer."));
  // What openai-community/gpt2 has besides, and a head that repeats the embedding.
  entries.push_back({"h.0.attn.bias", Dtype::f32, {1, 1, 40, 40}});
  entries.push_back({"h.1.attn.masked_bias", Dtype::f32, {}});
  entries.push_back({"lm_head.weight", Dtype::f32, {259, 48}});
  const TempFolder folder;
  write_model(folder, entries);
  const auto weights = weights_from_folder(config, params, folder.path());
  CHECK(values(*weights, params[2])[47] == 47);

  entries.push_back({"transformer.wte.weight", Dtype::f32, {259, 48}});
  write_model(folder, entries);
  CHECK_THAT(MESSAGE_OF(InputError, weights_from_folder(config, params, folder.path())), Contains("has both"));
}

TEST_CASE("Weights that do not fit the config are refused by name", "[weights]") {
  const ModelConfig config = read_model_config(kReference + "llama/config.json");
  const std::vector<ParamSpec> params = model_params(config, {});
  std::vector<SafetensorsWriter::Entry> entries = entries_of(params);
  const TempFolder folder;
  const auto refusal = [&](const ModelConfig& other) {
    write_model(folder, entries);
    return MESSAGE_OF(InputError, weights_from_folder(other, model_params(other, {}), folder.path()));
  };
  SECTION("missing") {
    entries.pop_back();
    CHECK_THAT(refusal(config), Contains("misses") && Contains("lm_head.weight"));
    entries.resize(3);
    CHECK_THAT(refusal(config), Contains("and 22 more"));
  }
  SECTION("surplus") {
    entries.push_back({"model.layers.3.mlp.up_proj.weight", Dtype::f32, {172, 64}});
    CHECK_THAT(refusal(config), Contains("no place") && Contains("layers.3.mlp.up_proj.weight"));
  }
  SECTION("a tied model's head of another shape") {
    ModelConfig tied = config;
    tied.tied = true;
    write_model(folder, entries);
    CHECK_NOTHROW(weights_from_folder(tied, model_params(tied, {}), folder.path()));
    entries.back().shape = {300, 64};
    CHECK_THAT(refusal(tied), Contains("lm_head.weight"));
  }
  SECTION("shape") {
    entries[2].shape = {64, 32};
    CHECK_THAT(refusal(config), Contains(entries[2].name) && Contains("[64, 32]") && Contains("[64, 64]"));
  }
  SECTION("dtype") {
    entries[2].dtype = Dtype::i16;
    CHECK_THAT(refusal(config), Contains(entries[2].name) && Contains("I16"));
  }
}

TEST_CASE("A weight that is not a number is refused by its place", "[weights]") {
  const TempFolder folder;
  const ModelConfig config = read_model_config(kReference + "gpt2/config.json");
  const std::vector<ParamSpec> params = model_params(config, {});
  std::vector<SafetensorsWriter::Entry> entries = entries_of(params);
  write_model(folder, entries);
  std::fstream file(folder.path("model.safetensors"), std::ios::binary | std::ios::in | std::ios::out);
  const float bad = std::nanf("");
  file.seekp(-4, std::ios::end);  // the last element of the last tensor
  file.write(reinterpret_cast<const char*>(&bad), 4);
  file.close();
  const auto weights = weights_from_folder(config, params, folder.path());
  for (std::size_t i = 0; i + 1 < params.size(); ++i) CHECK_NOTHROW(values(*weights, params[i]));
  CHECK_THAT(MESSAGE_OF(InputError, values(*weights, params.back())),
             Contains(params.back().name) && Contains("nan at element " + std::to_string(elements(params.back()) - 1)));
}

TEST_CASE("Weights in another form are not passed over", "[weights]") {
  const TempFolder folder;
  CHECK_FALSE(has_weights(folder.path()));
  folder.write("config.json", "{}");
  folder.write("training_args.bin", "");
  CHECK_FALSE(has_weights(folder.path()));
  for (const char* name : {"pytorch_model.bin", "model-00001-of-00002.safetensors", "model.gguf"}) {
    const std::string path = folder.write(name, "");
    CHECK_THAT(MESSAGE_OF(InputError, has_weights(folder.path())), Contains(name));
    std::filesystem::remove(path);
  }
}

TEST_CASE("Weights from a seed are those of transformers' recipe, in any order", "[weights]") {
  const ModelConfig config = named_model("gpt2-124m");
  const auto weights = weights_from_seed(config, 5);
  std::map<std::string, ParamSpec> params;
  for (const ParamSpec& param : model_params(config, {})) params.emplace(param.name, param);
  const auto deviation = [&](const std::string& name) {
    double sum = 0, squares = 0;
    const std::vector<float> all = values(*weights, params.at(name));
    for (const float x : all) sum += x, squares += static_cast<double>(x) * x;
    const auto n = static_cast<double>(all.size());
    CHECK(std::abs(sum / n) < 5 * 0.02 / std::sqrt(n));
    return std::sqrt(squares / n);
  };
  // The deviation of 6 · 10⁵ samples is known to 0.09 %.
  CHECK(deviation("transformer.wpe.weight") == Approx(0.02).epsilon(0.004));
  CHECK(deviation("transformer.h.3.attn.c_attn.weight") == Approx(0.02).epsilon(0.004));
  CHECK(deviation("transformer.h.3.attn.c_proj.weight") == Approx(0.02 / std::sqrt(24.0)).epsilon(0.004));
  CHECK(deviation("transformer.h.3.mlp.c_proj.weight") == Approx(0.02 / std::sqrt(24.0)).epsilon(0.004));
  for (const float x : values(*weights, params.at("transformer.ln_f.weight"))) REQUIRE(x == 1);
  for (const float x : values(*weights, params.at("transformer.ln_f.bias"))) REQUIRE(x == 0);
  for (const float x : values(*weights, params.at("transformer.h.0.mlp.c_fc.bias"))) REQUIRE(x == 0);

  const ParamSpec& param = params.at("transformer.h.3.attn.c_proj.weight");
  const std::vector<float> all = values(*weights, param);
  for (const auto& [begin, count] :
       std::vector<std::pair<std::uint64_t, std::uint64_t>>{{0, 1}, {1, 3}, {1027, 4098}}) {
    std::vector<float> part(count);
    weights->fill(param, begin, count, part.data());
    CHECK(std::memcmp(part.data(), all.data() + begin, 4 * count) == 0);
  }
  CHECK(weights->identity() == "seed 5");
  CHECK(values(*weights_from_seed(config, 6), param) != all);
  CHECK(values(*weights, params.at("transformer.h.4.attn.c_proj.weight")) != all);
  const auto llama = weights_from_seed(named_model("llama-60m"), 5);
  for (const float x : values(*llama, {"model.norm.weight", {512}})) REQUIRE(x == 1);
}
