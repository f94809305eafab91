// A slot file: a header that says whose it is, then equal slots. How it is opened decides how all blocks are read and
// written: with direct I/O where the file system has it.
#pragma once

#include <cstdint>
#include <string>

#include "base/os.h"
#include "offload/store.h"

namespace transload {

/// The first 4096 bytes of a slot file.
struct SlotFileHeader {
  static constexpr std::uint64_t kBytes = 4096;
  std::uint64_t store_id = 0;
  std::uint64_t number = 0;  ///< of the file in the store
  SlotClass slots;
  std::uint64_t file_bytes() const { return kBytes + slots.bytes * slots.count; }
};

/// How the files of a store are read and written.
struct DirectIo {
  bool on = false;
  std::string refusal;  ///< why not
  std::uint64_t alignment = 4096;
};
/// Makes an empty slot file (InputError where a foreign file has the name) and reads the alignment from it.
os::File make_slot_file(const std::string& path, DirectIo* direct);
void write_slot_header(const os::File& file, const SlotFileHeader& header);
/// Opens a slot file, with direct I/O where `direct->on` and a first read shows that it works; otherwise turns it off.
/// DamageError: missing, not `expected`, truncated.
os::File open_slot_file(const std::string& path, bool write, const SlotFileHeader& expected, DirectIo* direct);

/// Whether `path` is a slot file, or the beginning of one (no bytes are).
bool is_slot_file(const std::string& path);

}  // namespace transload
