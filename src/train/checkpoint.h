// What is done with a run's last commit without training: verify, fingerprint, export. Streams through one block's
// planes at a time and never changes the store. A store that another process trains is refused.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "chunk/layout.h"
#include "offload/store.h"
#include "train/model_config.h"

namespace transload {

struct GroupView;  // group_reader.h

/// The manifest's metadata (JSON, docs/formats.md), as the trainer writes it at each commit.
struct CheckpointMeta {
  std::uint64_t step = 0;          ///< optimizer steps taken (skipped ones not counted)
  std::uint64_t steps_seen = 0;    ///< steps of data consumed (skipped ones counted)
  std::uint64_t samples_seen = 0;  ///< position in the data order
  std::uint64_t seed = 0;
  std::uint64_t skipped_in_a_row = 0;
  std::string model_json;  ///< to_hf_config
  Dtype dtype = Dtype::bf16, gradients = Dtype::bf16;
  std::string layout_json;                 ///< Layout::to_json
  std::string model_identity;              ///< InitialWeights::identity
  std::string data_identity;               ///< TokenFile::identity
  std::string hyper_json;                  ///< learning rate, betas, …: what may change on resume, said
  std::vector<std::uint64_t> step_counts;  ///< by ParamId
  std::string tokenizer;                   ///< "bytes" | "ids"
  std::string run_id;                      ///< made at the run's beginning; empty: before there were ids
  std::uint64_t group = 0;                 ///< of stores (group_file.h); which rank's it is, the layout says
};
std::string to_json(const CheckpointMeta& meta);
CheckpointMeta parse_meta(const std::string& json_text, const std::string& where);

/// Where the store of a run of one rank is (run/store, or the folder that run/store links to). InputError when there is
/// none.
std::string store_folder(const std::string& run);

using Progress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

/// Reads every block of the last commit. Empty: whole. Otherwise one line a damaged block (file, block, step, of
/// several ranks whose), or a store that is missing or cannot be opened.
std::vector<std::string> verify_run(const std::string& run, const Progress& progress);

/// 32 hex digits over name, step count and elements of master, moment1, moment2 of every parameter, in name order:
/// independent of chunk size and placement.
std::string fingerprint_run(const std::string& run, const Progress& progress);

struct ExportOptions {
  bool master = false;                        ///< fp32 master instead of the training dtype
  bool optimizer = false;                     ///< also optimizer.safetensors: NAME.exp_avg, NAME.exp_avg_sq, NAME.step
  std::uint64_t shard_bytes = 5'000'000'000;  ///< weights above this are sharded
};
/// config.json + model.safetensors (sharded with an index above shard_bytes) in `folder` (created; refused when not
/// empty). The run must not be in use; a run exports itself by export_store.
void export_run(const std::string& run, const std::string& folder, const ExportOptions& options,
                const Progress& progress);
/// The last commit of a store that this process has open, of a run of one rank.
void export_store(Store& store, const std::string& folder, const ExportOptions& options, const Progress& progress);
/// The same of several ranks, each of which broadcasts the store that it has open. All ranks call it together, the one
/// that writes with a folder, the others with an empty one.
void export_group(const GroupView& view, const std::string& folder, const ExportOptions& options,
                  const Progress& progress);

}  // namespace transload
