// The folder of a store: its names, its lock, and what dead runs left in it.
//
//   lock          flock'd while in use; says which process
//   manifest      the last commit
//   manifest.new  a commit under way
//   slots-0000…   slot files; each begins with a header that says whose it is
// Nothing else in the folder is touched, and of these names nothing that does not carry our mark.
#pragma once

#include <cstddef>
#include <string>

#include "base/os.h"

namespace transload {

class StoreFolder {
 public:
  enum class Use { make, write, read };  ///< make: create a missing folder

  /// Takes the lock, which goes with the object. InputError: in use, a file, missing, a foreign file under one of our
  /// names; IoError otherwise.
  StoreFolder(const std::string& path, Use use);

  const std::string& path() const { return path_; }
  static std::string manifest_path(const std::string& folder) { return folder + "/manifest"; }
  std::string manifest_path() const { return manifest_path(path_); }
  static std::string temporary_path(const std::string& folder) { return folder + "/manifest.new"; }
  std::string temporary_path() const { return temporary_path(path_); }
  std::string slots_path(std::size_t number) const;

  /// Removes slot files of number `first` and above, and a half-written manifest, that dead runs left.
  void reclaim(std::size_t first) const;
  /// All of the store, the manifest after the slots, and the folder where nothing else is in it. Not to be used after.
  void remove() const;
  void sync() const;      ///< IoError
  void forget_process();  ///< the lock file names nobody any more

 private:
  void lock(Use use);
  std::string path_;
  os::File folder_, lock_;
};

}  // namespace transload
