#include "offload/slot_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "offload/io_queue.h"

namespace transload {
namespace {

constexpr std::array<char, 8> kMagic = {'T', 'L', 'S', 'L', 'O', 'T', 'S', '\n'};

struct DiskHeader {
  std::array<char, 8> magic = kMagic;
  std::uint64_t format = 1;
  std::uint64_t store_id = 0, number = 0, slot_bytes = 0, slots = 0;
  std::uint64_t checksum = 0;  // of what is before
};
static_assert(sizeof(DiskHeader) == 56);

struct alignas(SlotFileHeader::kBytes) Page {
  std::array<std::byte, SlotFileHeader::kBytes> bytes{};
};

DiskHeader to_disk(const SlotFileHeader& header) {
  DiskHeader disk;
  disk.store_id = header.store_id;
  disk.number = header.number;
  disk.slot_bytes = header.slots.bytes;
  disk.slots = header.slots.count;
  disk.checksum = XXH3_64bits(&disk, offsetof(DiskHeader, checksum));
  return disk;
}

std::int64_t read_page(const os::File& file, Page* page) {
  os::Retry retry;
  std::int64_t result;
  do {
    const iovec piece{page->bytes.data(), page->bytes.size()};
    result = file.read(std::span(&piece, 1), 0);
  } while (result < 0 && retry.again(result));
  return result;
}

/// Why direct I/O cannot be used on a file that `page` was to be read from; empty: it can.
std::string direct_refusal(const os::File& file, const SlotFileHeader& expected, Page* page) {
  const os::File::Direct said = file.direct();
  if (std::max(said.memory_alignment, said.offset_alignment) > IoQueue::kMemoryAlignment) {
    return fmt::format("the file system wants an alignment of {} bytes, blocks in memory have {}",
                       std::max(said.memory_alignment, said.offset_alignment), IoQueue::kMemoryAlignment);
  }
  if (said.offset_alignment != 0 && expected.slots.bytes % said.offset_alignment != 0) {
    return fmt::format("the file system wants an alignment of {} bytes, the store has slots of {}",
                       said.offset_alignment, expected.slots.bytes);
  }
  const std::int64_t result = read_page(file, page);
  if (result < 0) return fmt::format("a first direct read: {}", std::strerror(static_cast<int>(-result)));
  return {};
}

}  // namespace

os::File make_slot_file(const std::string& path, DirectIo* direct) {
  os::File file;
  const std::int64_t result = os::File::open(path, O_RDWR | O_CREAT | O_EXCL, &file);
  if (result == -EEXIST) {
    throw InputError(
        fmt::format("{} is in the way and was not written by a store. Move it, or choose another folder.", path));
  }
  if (result < 0) throw IoError({"open", path, "", 0, 0, 0, static_cast<int>(-result), ""});
  os::Space space;
  std::uint64_t block = IoQueue::kMemoryAlignment;
  if (os::space_of(path, &space) == 0 && std::has_single_bit(space.block_bytes)) {
    block = std::clamp<std::uint64_t>(space.block_bytes, 512, IoQueue::kMemoryAlignment);
  }
  // Whole blocks of the file system, so that no write makes it read first.
  direct->alignment = std::clamp<std::uint64_t>(file.direct().offset_alignment, block, IoQueue::kMemoryAlignment);
  return file;
}

void write_slot_header(const os::File& file, const SlotFileHeader& header) {
  Page page;
  const DiskHeader disk = to_disk(header);
  std::memcpy(page.bytes.data(), &disk, sizeof disk);
  file.write_or_throw(page.bytes.data(), page.bytes.size(), 0);
  // From here on the file can be told from a foreign one, also after a crash.
  if (const std::int64_t result = file.sync_all(); result < 0) {
    throw IoError({"fsync", file.path(), "", 0, 0, 0, static_cast<int>(-result), ""});
  }
}

os::File open_slot_file(const std::string& path, bool write, const SlotFileHeader& expected, DirectIo* direct) {
  os::File file;
  Page page;
  const int flags = write ? O_RDWR : O_RDONLY;
  if (direct->on) {
    const std::int64_t result = os::File::open(path, flags | O_DIRECT, &file);
    if (result == -EINVAL) {
      direct->refusal = "open with O_DIRECT: Invalid argument";
    } else if (result == 0) {
      direct->refusal = direct_refusal(file, expected, &page);
    }
    if (!direct->refusal.empty()) direct->on = false;
    if (!direct->on) file.close();
  }
  if (!file.is_open()) {
    const std::int64_t result = os::File::open(path, flags, &file);
    if (result == -ENOENT) throw DamageError(fmt::format("{} is missing. Restore the store from a copy.", path));
    if (result < 0) throw IoError({"open", path, "", 0, 0, 0, static_cast<int>(-result), ""});
  }
  const std::int64_t size = file.size();
  if (size >= 0 && static_cast<std::uint64_t>(size) < expected.file_bytes()) {
    throw DamageError(fmt::format("{} is truncated: wanted {} bytes, got {}. Restore the store from a copy.", path,
                                  expected.file_bytes(), size));
  }
  const std::int64_t got = read_page(file, &page);
  if (size < 0 || got < 0) {
    throw IoError({"read", path, "", 0, page.bytes.size(), 0, static_cast<int>(-std::min(size, got)), ""});
  }
  const DiskHeader disk = to_disk(expected);
  if (std::memcmp(page.bytes.data(), &disk, sizeof disk) != 0) {
    throw DamageError(
        fmt::format("{} does not belong to this store, or its first bytes are damaged. Restore the store "
                    "from a copy.",
                    path));
  }
  return file;
}

bool is_slot_file(const std::string& path) {
  os::File file;
  if (os::File::open(path, O_RDONLY, &file) < 0) return false;
  std::array<char, 8> begin{};
  const iovec piece{begin.data(), begin.size()};
  const std::int64_t got = file.read(std::span(&piece, 1), 0);
  return got >= 0 && std::equal(begin.begin(), begin.begin() + got, kMagic.begin());
}

}  // namespace transload
