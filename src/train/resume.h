// Going on from a commit: what must be the same, what may differ and is said.
#pragma once

#include <string>
#include <vector>

#include "chunk/layout.h"
#include "train/checkpoint.h"
#include "train/inputs.h"
#include "train/trainer.h"

namespace transload {

struct ResumePoint {
  CheckpointMeta meta;
  std::uint64_t chunk_bytes = 0;   ///< to go on with; other than the commit's layout has: by resharding
  std::vector<std::string> notes;  ///< what differs and is allowed
};

/// Settings of a run that a commit keeps beside the model's (CheckpointMeta::hyper_json).
std::string hyper_json(const TrainOptions& options);

/// Holds settings and model against a last commit (RunStores::meta). InputError says what differs.
ResumePoint resume_point(const TrainOptions& options, const Inputs& inputs, CheckpointMeta meta);
/// And the data, once it is open.
void check_resumed_data(const TrainOptions& options, const Inputs& inputs, const ResumePoint& point);

/// The commit's blocks in the numbering of `layout`, which may have other transient planes. Blocks of `blocks` that
/// the commit does not have are left without content.
std::vector<StoredBlock> stored_blocks(const Manifest& manifest, const Layout& layout, std::size_t blocks);

}  // namespace transload
