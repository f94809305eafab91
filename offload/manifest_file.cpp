#include "offload/manifest_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace transload {
namespace {
static_assert(std::endian::native == std::endian::little, "the manifest is written as it lies in memory");

constexpr std::array<char, 8> kMagic = {'T', 'L', 'M', 'A', 'N', 'I', 'F', '\n'};
constexpr std::uint32_t kFormat = 1;
constexpr std::uint32_t kOpenFlag = 1;

struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint32_t format = kFormat;
  std::uint32_t flags = 0;
  std::uint64_t store_id = 0;
  std::uint64_t sequence = 0;
  std::uint64_t extents = 0, blocks = 0, metadata_bytes = 0;
  std::uint64_t extents_checksum = 0, blocks_checksum = 0, metadata_checksum = 0;
  std::uint64_t header_checksum = 0;
};
struct DiskExtent {
  std::uint64_t slot_bytes, slots;
};
struct DiskBlock {
  std::uint32_t slot, zero;
  std::uint64_t version, bytes, checksum;
};
static_assert(sizeof(Header) == 88 && sizeof(DiskExtent) == 16 && sizeof(DiskBlock) == 32);

std::uint64_t checksum_of(const Header& header) { return XXH3_64bits(&header, offsetof(Header, header_checksum)); }

[[noreturn]] void damaged(const std::string& path, std::string_view how) {
  throw DamageError(fmt::format("{} is damaged: {}. Restore the store from a copy.", path, how));
}

void check(std::int64_t result, const char* operation, const std::string& path) {
  if (result < 0) throw IoError({operation, path, "", 0, 0, 0, static_cast<int>(-result), ""});
}

/// The sections of a manifest that lies in memory.
struct Sections {
  const std::byte* extents;
  const std::byte* blocks;
  const std::byte* metadata;
};

Sections find_sections(const std::string& path, const Header& header, std::span<const std::byte> bytes) {
  // Counts are checked one by one against what is there, so that no sum can overflow.
  const auto section = [&](std::uint64_t count, std::uint64_t each, std::uint64_t before) {
    if (count > (bytes.size() - before) / each) {
      damaged(path, fmt::format("it is truncated: wanted {} bytes or more, got {}", before + each, bytes.size()));
    }
    return before + count * each;
  };
  const std::uint64_t blocks = section(header.extents, sizeof(DiskExtent), sizeof(Header));
  const std::uint64_t metadata = section(header.blocks, sizeof(DiskBlock), blocks);
  const std::uint64_t end = section(header.metadata_bytes, 1, metadata);
  if (end != bytes.size()) damaged(path, fmt::format("wanted {} bytes, got {}", end, bytes.size()));
  return {bytes.data() + sizeof(Header), bytes.data() + blocks, bytes.data() + metadata};
}

Header read_header(const std::string& path, std::span<const std::byte> bytes) {
  Header header;
  if (bytes.size() < sizeof header) {
    damaged(path, fmt::format("it is truncated: wanted {} bytes or more, got {}", sizeof header, bytes.size()));
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic) damaged(path, "it does not begin like a manifest");
  if (header.header_checksum != checksum_of(header)) damaged(path, "its header does not match its checksum");
  if (header.format != kFormat) {
    throw InputError(fmt::format("{} has format {}; this program knows format {}. Use the version that wrote it.", path,
                                 header.format, kFormat));
  }
  return header;
}

}  // namespace

ManifestContent read_manifest_file(const std::string& path) {
  const os::File file = os::File::open_or_throw(path, O_RDONLY);
  const std::int64_t size = file.size();
  if (size < 0) throw IoError({"stat", path, "", 0, 0, 0, static_cast<int>(-size), ""});
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  file.read_or_throw(bytes.data(), bytes.size(), 0);

  const Header header = read_header(path, bytes);
  const Sections at = find_sections(path, header, bytes);
  const auto check = [&](const std::byte* data, std::uint64_t n, std::uint64_t checksum, std::string_view part) {
    if (XXH3_64bits(data, n) != checksum) damaged(path, fmt::format("its {} does not match its checksum", part));
  };
  check(at.extents, header.extents * sizeof(DiskExtent), header.extents_checksum, "list of slot files");
  check(at.blocks, header.blocks * sizeof(DiskBlock), header.blocks_checksum, "list of blocks");
  check(at.metadata, header.metadata_bytes, header.metadata_checksum, "metadata");

  ManifestContent content;
  content.manifest.store_id = header.store_id;
  content.open = (header.flags & kOpenFlag) != 0;
  content.manifest.sequence = header.sequence;
  for (std::uint64_t i = 0; i < header.extents; ++i) {
    DiskExtent extent;
    std::memcpy(&extent, at.extents + i * sizeof extent, sizeof extent);
    content.extents.push_back({extent.slot_bytes, extent.slots});
  }
  content.manifest.blocks.reserve(header.blocks);
  for (std::uint64_t i = 0; i < header.blocks; ++i) {
    DiskBlock block;
    std::memcpy(&block, at.blocks + i * sizeof block, sizeof block);
    content.manifest.blocks.push_back({SlotId(block.slot), block.version, block.bytes, block.checksum});
  }
  content.manifest.metadata.assign(reinterpret_cast<const char*>(at.metadata), header.metadata_bytes);
  return content;
}

namespace {

/// Why the prepared manifest is not the wanted commit's; empty where it is, and *content has it.
std::string refusal_of_prepared(const std::string& path, const std::optional<ManifestContent>& before,
                                std::uint64_t wanted, ManifestContent* content) {
  if (os::kind_of(path) == os::PathKind::missing) return "no commit is prepared";
  try {
    *content = read_manifest_file(path);
  } catch (const DamageError& error) {
    return fmt::format("of the prepared commit: {}", error.what());
  }
  const Manifest& prepared = content->manifest;
  if (before && before->manifest.store_id != prepared.store_id) return "a commit of another store is prepared";
  const std::uint64_t follows = before ? before->manifest.sequence : 0;
  if (prepared.sequence == wanted && prepared.sequence == follows + 1) return {};
  return fmt::format("commit {} is prepared", prepared.sequence);
}

}  // namespace

ManifestContent read_commit(const std::string& path, const std::string& temporary_path,
                            std::optional<std::uint64_t> wanted, bool* prepared) {
  *prepared = false;
  std::optional<ManifestContent> last;
  if (os::kind_of(path) != os::PathKind::missing) last = read_manifest_file(path);
  const std::string folder = path.substr(0, path.rfind('/'));
  if (!wanted && !last) throw InputError(fmt::format("There is no store in {}: it has no manifest.", folder));
  if (!wanted || (last && last->manifest.sequence == *wanted)) return std::move(*last);
  ManifestContent content;
  const std::string refusal = refusal_of_prepared(temporary_path, last, *wanted, &content);
  if (!refusal.empty()) {
    throw DamageError(fmt::format("The store in {} does not have commit {}, which is wanted: {}, and {}.", folder,
                                  *wanted,
                                  last ? fmt::format("commit {} is the last one", last->manifest.sequence)
                                       : std::string("no commit was finished"),
                                  refusal));
  }
  *prepared = true;
  return content;
}

bool is_our_leftover(const std::string& path) {
  os::File file;
  const std::int64_t result = os::File::open(path, O_RDONLY, &file);
  if (result == -ENOENT) return true;
  if (result < 0) return false;
  std::array<char, 8> begin{};
  const iovec piece{begin.data(), begin.size()};
  const std::int64_t got = file.read(std::span(&piece, 1), 0);
  if (got < 0) return false;
  // A process may have died after any byte.
  const auto end = begin.begin() + got;
  return std::equal(begin.begin(), end, kMagic.begin()) ||
         std::all_of(begin.begin(), end, [](char c) { return c == 0; });
}

ManifestWriter::ManifestWriter(std::string path, std::string temporary_path)
    : path_(std::move(path)), temporary_path_(std::move(temporary_path)) {}

void ManifestWriter::prepare(const Parts& parts) {
  Header header;
  header.flags = parts.open ? kOpenFlag : 0;
  header.store_id = parts.store_id;
  header.sequence = parts.sequence;
  header.extents = parts.extents.size();
  header.blocks = parts.blocks.size();
  header.metadata_bytes = parts.metadata.size();
  const std::uint64_t blocks_at = sizeof header + header.extents * sizeof(DiskExtent);
  const std::uint64_t metadata_at = blocks_at + header.blocks * sizeof(DiskBlock);
  const std::uint64_t total = metadata_at + header.metadata_bytes;
  if (bytes_.capacity() < total) bytes_.reserve(total + total / 2);
  bytes_.resize(total);

  std::byte* extents = bytes_.data() + sizeof header;
  for (std::size_t i = 0; i < parts.extents.size(); ++i) {
    const DiskExtent extent{parts.extents[i].bytes, parts.extents[i].count};
    std::memcpy(extents + i * sizeof extent, &extent, sizeof extent);
  }
  std::byte* blocks = bytes_.data() + blocks_at;
  for (std::size_t i = 0; i < parts.blocks.size(); ++i) {
    const StoredBlock& b = parts.blocks[i];
    const DiskBlock block{b.slot.value, 0, b.version, b.bytes, b.checksum};
    std::memcpy(blocks + i * sizeof block, &block, sizeof block);
  }
  std::copy(parts.metadata.begin(), parts.metadata.end(), reinterpret_cast<char*>(bytes_.data() + metadata_at));
  header.extents_checksum = XXH3_64bits(extents, blocks_at - sizeof header);
  header.blocks_checksum = XXH3_64bits(blocks, metadata_at - blocks_at);
  header.metadata_checksum = XXH3_64bits(bytes_.data() + metadata_at, header.metadata_bytes);
  header.header_checksum = checksum_of(header);
  std::memcpy(bytes_.data(), &header, sizeof header);
}

void ManifestWriter::write(bool durable) {
  check(os::File::open(temporary_path_, O_WRONLY | O_CREAT | O_TRUNC, &file_), "open", temporary_path_);
  file_.write_or_throw(bytes_.data(), bytes_.size(), 0);
  if (durable) check(file_.sync(), "fdatasync", temporary_path_);
  file_.close();
}

void ManifestWriter::rename() const { check(os::rename(temporary_path_, path_), "rename", temporary_path_); }

}  // namespace transload
