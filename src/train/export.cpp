// The last commit as a folder that transformers loads.
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "base/error.h"
#include "base/os.h"
#include "train/committed_state.h"
#include "train/safetensors.h"
#include "train/store_group.h"

namespace transload {
namespace {

namespace fs = std::filesystem;
using Array = CommittedState::Array;

/// Which parameters a file of the export gets.
struct Shard {
  std::string file;
  std::vector<ParamId> params;
  std::uint64_t bytes = 0;
};

/// Parameters in stream order, a new file before `most_bytes` would be passed.
std::vector<Shard> make_shards(const CommittedState& state, Dtype dtype, std::uint64_t most_bytes) {
  std::vector<Shard> shards(1);
  for (const ParamId param : state.stream_order()) {
    const std::uint64_t bytes = state.layout().param(param).elements() * size_of(dtype);
    if (!shards.back().params.empty() && shards.back().bytes + bytes > most_bytes) shards.emplace_back();
    shards.back().params.push_back(param);
    shards.back().bytes += bytes;
  }
  for (std::size_t i = 0; i < shards.size(); ++i)
    shards[i].file = shards.size() == 1 ? "model.safetensors"
                                        : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  return shards;
}

void write_text(const fs::path& path, const std::string& text) {
  const os::File file = os::File::open_or_throw(path.string(), O_WRONLY | O_CREAT | O_TRUNC);
  file.write_or_throw(text.data(), text.size(), 0);
  if (const std::int64_t result = file.sync_all(); result < 0)
    throw IoError({"fsync", path.string(), "", 0, 0, 0, static_cast<int>(-result), ""});
}

void write_index(const CommittedState& state, const std::vector<Shard>& shards, const fs::path& folder) {
  nlohmann::ordered_json index;
  std::uint64_t bytes = 0;
  for (const Shard& shard : shards) bytes += shard.bytes;
  index["metadata"]["total_size"] = bytes;
  for (const Shard& shard : shards)
    for (const ParamId param : shard.params) index["weight_map"][state.layout().param(param).name] = shard.file;
  write_text(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

/// Writes the files of the shards one after the other as their elements come.
class ShardWriter {
 public:
  ShardWriter(const CommittedState& state, const std::vector<Shard>& shards, fs::path folder, Dtype dtype)
      : state_(state), shards_(shards), folder_(std::move(folder)), dtype_(dtype) {
    open();
  }
  void add(ParamId param, std::uint64_t count, const std::byte* data) {
    const std::vector<ParamId>* params = &shards_[current_].params;
    while (std::find(params->begin(), params->end(), param) == params->end()) {
      next();
      params = &shards_[current_].params;
    }
    writer_->append(data, count * size_of(dtype_));
  }
  void finish() {
    while (current_ + 1 < shards_.size()) next();
    writer_->finish();
  }

 private:
  void next() {
    writer_->finish();
    ++current_;
    TRANSLOAD_CHECK(current_ < shards_.size(), "no shard {} of {}", current_, shards_.size());
    open();
  }
  void open() {
    std::vector<SafetensorsWriter::Entry> entries;
    for (const ParamId p : shards_[current_].params)
      entries.push_back({state_.layout().param(p).name, dtype_, state_.layout().param(p).shape});
    writer_.emplace((folder_ / shards_[current_].file).string(), std::move(entries),
                    std::map<std::string, std::string>{{"format", "pt"}});
  }
  const CommittedState& state_;
  const std::vector<Shard>& shards_;
  const fs::path folder_;
  const Dtype dtype_;
  std::size_t current_ = 0;
  std::optional<SafetensorsWriter> writer_;
};

void export_weights(CommittedState& state, const fs::path& folder, Array array, std::uint64_t shard_bytes) {
  const Dtype dtype = state.dtype_of(array);
  const std::vector<Shard> shards = make_shards(state, dtype, shard_bytes);
  ShardWriter writer(state, shards, folder, dtype);
  state.stream(array, [&](ParamId param, std::uint64_t, std::uint64_t count, const std::byte* data) {
    writer.add(param, count, data);
  });
  writer.finish();
  if (shards.size() > 1) write_index(state, shards, folder);
}

/// NAME.exp_avg of all trained parameters, then NAME.exp_avg_sq, then NAME.step (fp32, as PyTorch has it).
void export_optimizer(CommittedState& state, const fs::path& folder) {
  std::vector<ParamId> trained;
  for (const ParamId param : state.stream_order())
    if (!state.layout().param(param).frozen) trained.push_back(param);
  std::vector<SafetensorsWriter::Entry> entries;
  for (const char* suffix : {".exp_avg", ".exp_avg_sq"})
    for (const ParamId p : trained)
      entries.push_back({state.layout().param(p).name + suffix, Dtype::f32, state.layout().param(p).shape});
  for (const ParamId p : trained) entries.push_back({state.layout().param(p).name + ".step", Dtype::f32, {}});
  SafetensorsWriter writer((folder / "optimizer.safetensors").string(), std::move(entries), {});
  for (const Array array : {Array::moment1, Array::moment2})
    state.stream(array, [&](ParamId, std::uint64_t, std::uint64_t count, const std::byte* data) {
      writer.append(data, count * 4);
    });
  for (const ParamId p : trained) {
    const auto steps = static_cast<float>(state.meta().step_counts[p.value]);
    writer.append(&steps, sizeof steps);
  }
  writer.finish();
}

void make_empty_folder(const fs::path& folder) {
  if (const std::int64_t result = os::make_folders(folder.string()); result < 0)
    throw IoError({"mkdir", folder.string(), "", 0, 0, 0, static_cast<int>(-result), ""});
  std::vector<std::string> names;
  if (const std::int64_t result = os::list_folder(folder.string(), &names); result < 0)
    throw IoError({"readdir", folder.string(), "", 0, 0, 0, static_cast<int>(-result), ""});
  if (!names.empty())
    throw InputError(fmt::format("{} is not empty (it has {}). An export goes to a new or an empty folder.",
                                 folder.string(), names.front()));
}

/// Removes what a failed export left: the folder was empty before.
void clear_folder(const fs::path& folder) {
  std::vector<std::string> names;
  os::list_folder(folder.string(), &names);
  for (const std::string& name : names) os::remove((folder / name).string());
}

}  // namespace

void export_group(const GroupView& view, const std::string& folder, const ExportOptions& options,
                  const Progress& progress) {
  CommittedState state(view, progress);
  const ModelConfig config = parse_model_config(state.meta().model_json, "the run's model");
  const Array array = options.master ? Array::master : Array::weight;
  std::vector<Array> arrays = {array};
  if (options.optimizer)
    for (const Array moment : {Array::moment1, Array::moment2}) arrays.push_back(moment);
  state.expect(arrays);
  if (folder.empty()) {  // somebody else writes
    for (const Array each : arrays) state.stream(each, [](ParamId, std::uint64_t, std::uint64_t, const std::byte*) {});
    return;
  }
  make_empty_folder(folder);
  try {
    export_weights(state, folder, array, options.shard_bytes);
    if (options.optimizer) export_optimizer(state, folder);
    write_text(fs::path(folder) / "config.json", to_hf_config(config, state.dtype_of(array)));
  } catch (...) {
    clear_folder(folder);
    throw;
  }
}

void export_store(Store& store, const std::string& folder, const ExportOptions& options, const Progress& progress) {
  export_group(GroupView::of(store, "the run"), folder, options, progress);
}

void export_run(const std::string& run, const std::string& folder, const ExportOptions& options,
                const Progress& progress) {
  const OpenGroup group = open_run(run);
  export_group(group.view, folder, options, progress);
}

}  // namespace transload
