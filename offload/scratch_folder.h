// A private subfolder for files that need not outlive the process: made at construction, removed by the destructor.
// One that a dead process left is reclaimed by the next construction in the same place; a living one's is never
// touched. Whose a subfolder is says the lock on its file "owner" (flock: it goes with the process), never a process
// id.
#pragma once

#include <string>

#include "base/os.h"

namespace transload {

class ScratchFolder {
 public:
  /// `parent` must exist. InputError: missing, not a folder; IoError: read-only, no room.
  explicit ScratchFolder(const std::string& parent);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }
  static constexpr const char* kPrefix = "transload-scratch-";

 private:
  std::string path_;
  os::File owner_;
};

}  // namespace transload
