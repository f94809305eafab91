// The manifest on disk: what a commit says, in one binary file that is replaced as a whole.
//
//   header  88 bytes: magic, format, flags, store id, sequence, three counts, three checksums, its own checksum
//   extents {slot bytes, slots} of each slot file
//   blocks  {slot, version, bytes, checksum} by block
//   metadata: text
// Little-endian; checksums are xxh3-64. Every part has its own, so that damage can be named.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/os.h"
#include "offload/store.h"

namespace transload {

/// Everything a manifest file says.
struct ManifestContent {
  bool open = false;  ///< a store without durability was in use when this was written
  std::vector<SlotClass> extents;
  Manifest manifest;
};

/// DamageError names the part; IoError where the file cannot be read.
ManifestContent read_manifest_file(const std::string& path);
/// The commit that is `wanted` (nothing: the last one), from the manifest or, *prepared, from the one that was prepared
/// to follow it. InputError: no manifest; DamageError says what is there instead of the wanted one.
ManifestContent read_commit(const std::string& path, const std::string& temporary_path,
                            std::optional<std::uint64_t> wanted, bool* prepared);
/// Whether `path` may be overwritten as a half-written manifest: missing, empty, zeros, or one of ours.
bool is_our_leftover(const std::string& path);

/// Writes manifests, always in the same memory.
class ManifestWriter {
 public:
  struct Parts {
    std::uint64_t store_id = 0;
    std::uint64_t sequence = 0;
    bool open = false;
    std::span<const SlotClass> extents;
    std::span<const StoredBlock> blocks;
    std::string_view metadata;
  };
  ManifestWriter(std::string path, std::string temporary_path);

  /// Builds the bytes; room grows by half more than needed, so the next ones fit.
  void prepare(const Parts& parts);
  /// Writes what was prepared under the temporary name, `durable`: makes its bytes durable.
  void write(bool durable);
  /// Gives it its name. On an exception the old file is in place.
  void rename() const;
  std::uint64_t bytes() const { return bytes_.size(); }

 private:
  std::string path_, temporary_path_;
  os::File file_;
  std::vector<std::byte> bytes_;
};

}  // namespace transload
