// The run folder: its lock, where its store lies, and config.toml.
//
// A folder is in use while a living process holds the flock on its `lock` file; the kernel releases it when the process
// dies, whatever the cause, so that nothing has to be cleaned up by hand.
#pragma once

#include <string>

#include "base/os.h"
#include "train/trainer.h"

namespace transload {

/// In the run folder: algorithms of matrix products that an accelerator chose.
inline constexpr const char* kAlgorithmsFile = "products.json";

/// A rank's own file: rank 0's has the plain name, others' say "-r1" before the ending.
std::string name_for(const Shards& shards, const std::string& file);

class RunFolder {
 public:
  /// Creates the folder where it is missing and takes its lock. InputError: a file, in use (by which process); IoError:
  /// cannot be made or written.
  /// `join`: the folder of a run that another rank leads: made where it is missing, not locked.
  enum class Use { lead, join };
  explicit RunFolder(const std::string& path, Use use = Use::lead);

  const std::string& path() const { return path_; }
  /// Writes a small file whole or not at all: temporary name, fsync, rename.
  void write_file(const std::string& name, const std::string& text) const;

  /// InputError when `path` is a file or in use by a living process; takes and makes nothing.
  static void check_usable(const std::string& path);

 private:
  std::string path_;
  os::File lock_;
};

/// InputError: --nvme is missing, not a folder, or cannot be written.
void check_nvme(const TrainOptions& options);
/// The folder where the store of a run lies or will lie: run/store, or a folder of its own below --nvme, to which
/// run/store links. InputError: --nvme missing, not a folder, not writable, or other than where the store is already.
std::string place_of_store(const TrainOptions& options);

/// Of the file system of `folder`, or of the nearest parent that exists.
os::Space space_at(const std::string& folder);

/// Every setting as resolved, in the names and forms of the flags.
std::string config_toml(const TrainOptions& options);

}  // namespace transload
