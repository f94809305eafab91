// Files that are not what was written, folders that are not ours, two processes.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "offload/store_fixture.h"

namespace transload::testing {
namespace {

const IoWay kWay{"io_uring direct", IoPath::uring, true};

StoreOptions options_for(const TemporaryFolder& folder) {
  StoreOptions options;
  options.folder = folder.file("store");
  return options;
}

void make_store(const TemporaryFolder& folder) {
  Run(folder.file("store"), kWay, 7).carry_out([](std::uint64_t) {}, [](std::uint64_t) {});
}

void flip(const std::string& path, std::uint64_t at) {
  const os::File file = os::File::open_or_throw(path, O_RDWR);
  std::uint8_t byte = 0;
  file.read_or_throw(&byte, 1, at);
  byte ^= 0x10;
  file.write_or_throw(&byte, 1, at);
}

/// The message with which opening is refused.
template <class Expected>
std::string refusal(const StoreOptions& options) {
  try {
    Store::open(options, {}, {});
  } catch (const Expected& error) {
    return error.what();
  }
  return "not refused as expected";
}

bool says(const std::string& message, const std::string& part) { return message.find(part) != std::string::npos; }

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("a flipped byte in a block is found, and named") {
  const TemporaryFolder folder;
  make_store(folder);
  const StoreOptions options = options_for(folder);
  const Frames frames(256 * KiB);
  std::uint64_t found = 0;
  for (std::size_t b = 0; b < 5; ++b) {
    const Manifest manifest = Store::read_manifest(options.folder);
    const StoredBlock block = manifest.blocks[b];
    // Slots 0-5 are of 64 KiB in the first file, 6-9 of 160 KiB in the second, 10 of 64 KiB in the third.
    const std::uint32_t slot = block.slot.value;
    const std::string file = slot < 6 ? "slots-0000" : slot < 10 ? "slots-0001" : "slots-0002";
    const std::uint64_t offset = 4096 + (slot < 6 ? slot * 64 * KiB : slot < 10 ? (slot - 6) * 160 * KiB : 0);
    for (const std::uint64_t at : {std::uint64_t{0}, block.bytes / 2, block.bytes - 1}) {
      INFO("block " << b << ", byte " << at);
      flip(options.folder + "/" + file, offset + at);
      {
        const auto store = Store::open_read_only(options);
        const IoResult result =
            read_block(*store, block.slot, frames.slices(block.bytes), block.checksum, "chunk 3 weight");
        const std::string message = message_of(result);
        CHECK(says(message, file));
        CHECK(says(message, "chunk 3 weight"));
        CHECK(says(message, "is damaged"));
        if (result.error != nullptr) CHECK_THROWS_AS(std::rethrow_exception(result.error), DamageError);
        ++found;
      }
      flip(options.folder + "/" + file, offset + at);
    }
  }
  CHECK(found == 15);
  CHECK(Run(options.folder, kWay, 7).check() == Run::kSteps);
}

TEST_CASE("every byte of the manifest counts") {
  const TemporaryFolder folder(true);
  make_store(folder);
  const StoreOptions options = options_for(folder);
  const std::string path = options.folder + "/manifest";
  const std::uint64_t bytes = std::filesystem::file_size(path);
  for (std::uint64_t at = 0; at < bytes; ++at) {
    INFO("byte " << at);
    flip(path, at);
    const std::string message = refusal<DamageError>(options);
    CHECK(says(message, path + " is damaged"));
    const char* part = at < 8              ? "does not begin like a manifest"
                       : at < 88           ? "header"
                       : at < 88 + 3 * 16  ? "list of slot files"
                       : at < 136 + 5 * 32 ? "list of blocks"
                                           : "metadata";
    CHECK(says(message, part));
    flip(path, at);
  }
  for (std::uint64_t size = 0; size < bytes; size += 7) {
    INFO("cut to " << size);
    const std::string whole = read_text(path);
    std::filesystem::resize_file(path, size);
    CHECK(says(refusal<DamageError>(options), "truncated"));
    std::ofstream(path, std::ios::binary) << whole;
  }
  std::ofstream(path, std::ios::binary | std::ios::app) << "x";
  CHECK(says(refusal<DamageError>(options), "wanted"));
}

TEST_CASE("slot files that are short, missing or of another store are named") {
  const TemporaryFolder folder, other;
  make_store(folder);
  make_store(other);
  const StoreOptions options = options_for(folder);
  for (const char* name : {"slots-0000", "slots-0001", "slots-0002"}) {
    const std::string path = options.folder + "/" + name;
    const std::string whole = read_text(path);
    for (const std::uint64_t size : {whole.size() - 1, whole.size() / 2, std::size_t{4096}, std::size_t{0}}) {
      std::filesystem::resize_file(path, size);
      const std::string message = refusal<DamageError>(options);
      CHECK(says(message, path + " is truncated: wanted " + std::to_string(whole.size()) + " bytes, got " +
                              std::to_string(size)));
    }
    std::filesystem::remove(path);
    CHECK(says(refusal<DamageError>(options), path + " is missing"));
    std::filesystem::copy(other.file("store") + "/" + name, path);
    CHECK(says(refusal<DamageError>(options), path + " does not belong to this store"));
    std::ofstream(path, std::ios::binary | std::ios::trunc) << whole;
  }
  CHECK(Run(options.folder, kWay, 7).check() == Run::kSteps);
}

TEST_CASE("a file that shrinks under an open store is truncated, not zeros") {
  for (const IoWay& way : io_ways()) {
    INFO(way.name);
    const TemporaryFolder folder;
    StoreOptions options = options_for(folder);
    options.io = way.path;
    const os::InterceptScope scope(interceptor_of(way));
    const auto store = Store::create(options, {{64 * KiB, 1}}, {});
    const Frames frames(64 * KiB);
    const SlotId slot = store->allocate(64 * KiB);
    const IoResult written = write_block(*store, slot, frames.slices(64 * KiB));
    std::filesystem::resize_file(options.folder + "/slots-0000", 4096 + 32 * KiB);
    const IoResult result = read_block(*store, slot, frames.slices(64 * KiB), written.checksum, "chunk 1 weight");
    CHECK(says(message_of(result), "slots-0000 is truncated: chunk 1 weight"));
  }
}

TEST_CASE("a store in use is refused to others, in this process and in another") {
  const TemporaryFolder folder;
  make_store(folder);
  const StoreOptions options = options_for(folder);
  const auto store = Store::open(options, {}, {});
  const std::string me = "in use by process " + std::to_string(::getpid());
  CHECK(says(refusal<InputError>(options), me));
  CHECK_THROWS_AS(Store::create(options, {}, {}), InputError);
  CHECK_THROWS_AS(Store::open_read_only(options), InputError);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(says(refusal<InputError>(options), me) ? 0 : 1);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  CHECK(Store::read_manifest(options.folder).sequence == Run::kSteps);
}

TEST_CASE("readers share, and keep a writer out") {
  const TemporaryFolder folder;
  make_store(folder);
  const StoreOptions options = options_for(folder);
  auto first = Store::open_read_only(options);
  const auto second = Store::open_read_only(options);
  CHECK(first->committed().sequence == Run::kSteps);
  CHECK(says(refusal<InputError>(options), "in use by a process that reads it"));
}

TEST_CASE("reading changes nothing") {
  const TemporaryFolder folder;
  make_store(folder);
  const StoreOptions options = options_for(folder);
  const os::InterceptScope scope([](const os::IoOp& op) -> std::optional<std::int64_t> {
    const bool opens_to_write = op.kind == os::OpKind::open && (op.flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0;
    if (opens_to_write || (op.kind != os::OpKind::open && os::changing_ops().matches(op))) return -EROFS;
    return std::nullopt;
  });
  const auto store = Store::open_read_only(options);
  const Frames frames(256 * KiB);
  for (const StoredBlock& block : store->committed().blocks) {
    CHECK(message_of(read_block(*store, block.slot, frames.slices(block.bytes), block.checksum)).empty());
  }
  store->close();
}

TEST_CASE("foreign files stay as they are") {
  const TemporaryFolder folder;
  const StoreOptions options = options_for(folder);
  std::filesystem::create_directory(options.folder);
  const auto put = [&](const std::string& name) { std::ofstream(options.folder + "/" + name) << "mine: " << name; };
  const auto kept = [&](const std::string& name) { return read_text(options.folder + "/" + name) == "mine: " + name; };
  for (const char* name :
       {"notes.txt", "slots-0007", "slots-x", "slots-", "manifest.old", "slots-99999999999999999999"})
    put(name);
  Run(options.folder, kWay, 7).carry_out([](std::uint64_t) {}, [](std::uint64_t) {});
  for (const char* name :
       {"notes.txt", "slots-0007", "slots-x", "slots-", "manifest.old", "slots-99999999999999999999"}) {
    CHECK(kept(name));
  }
  for (const char* name : {"lock", "slots-0000", "slots-0001", "manifest.new", "manifest"}) {
    INFO(name);
    const TemporaryFolder second;
    StoreOptions in_the_way = options_for(second);
    std::filesystem::create_directory(in_the_way.folder);
    std::ofstream(in_the_way.folder + "/" + name) << "mine";
    CHECK_THROWS_AS(Store::create(in_the_way, {{4096, 1}, {8192, 1}}, {}), InputError);
    CHECK(read_text(in_the_way.folder + "/" + name) == "mine");
  }
}

TEST_CASE("folders that cannot hold a store are refused") {
  const TemporaryFolder folder;
  StoreOptions options = options_for(folder);
  CHECK(says(refusal<InputError>(options), "does not exist"));
  CHECK_FALSE(Store::exists(options.folder));
  std::filesystem::create_directory(options.folder);
  CHECK(says(refusal<InputError>(options), "no manifest"));
  make_store(folder);
  CHECK(Store::exists(options.folder));
  CHECK_THROWS_AS(Store::create(options, {}, {}), InputError);
  std::ofstream(folder.file("file")) << "x";
  options.folder = folder.file("file");
  CHECK(says(refusal<InputError>(options), "not a folder"));
  CHECK_THROWS_AS(Store::create(options, {}, {}), InputError);
  options.folder = folder.file("file/below");
  CHECK_THROWS_AS(Store::create(options, {}, {}), IoError);
  options.folder = folder.file("read-only");
  const os::InterceptScope scope(os::fail_at(os::ops({os::OpKind::open}, "lock"), 1, -EROFS));
  try {
    Store::create(options, {}, {});
    FAIL("no error");
  } catch (const IoError& error) {
    CHECK(says(error.what(), "Read-only file system"));
  }
}

TEST_CASE("progress runs to the end, and a store of no slots is one") {
  const TemporaryFolder folder;
  std::uint64_t last = 0, total = 0;
  Store::create(options_for(folder), {{MiB, 3}, {4096, 1}}, [&](std::uint64_t done, std::uint64_t of) {
    CHECK(done >= last);
    last = done;
    total = of;
  });
  CHECK(last == 3 * MiB + 4096);
  CHECK(total == last);
  StoreOptions empty = options_for(folder);
  empty.folder = folder.file("empty");
  { Store::create(empty, {}, {})->commit("nothing", {}); }
  const auto store = Store::open(empty, {{4096, 1}}, {});
  CHECK(store->committed().metadata == "nothing");
  CHECK(store->allocate(1).valid());
}

}  // namespace transload::testing
