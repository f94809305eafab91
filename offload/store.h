// The store: files of slots on NVMe, and what they promise after a crash (DESIGN.md, "The store").
//
// Invariants
//  - A slot that the last commit refers to is never written until a later commit has replaced it.
//  - A commit that was prepared can be finished or dropped, also by whoever opens the store next: several stores commit
//    together by preparing all, deciding once for all, and finishing all.
//  - A read returns the bytes whose xxh3 and version the caller names, or fails with DamageError naming file and block.
//  - Every completion's result is looked at: short transfers, EAGAIN and EINTR go on (bounded); an error reaches its
//    Completion exactly once.
//  - Alignment of offsets and lengths comes from the file (statx), slots are multiples of it; memory must be aligned to
//    4096 bytes (arena frames are).
// Threading: submit_* from any thread, never blocks on I/O (bounded by `queue_depth` requests in flight; further ones
// wait in a ring sized at construction: `max_pending`). Completions run on the store's own threads, must not block on
// other I/O of the same store and must not throw. commit, allocate, free: one thread at a time with respect to
// themselves, concurrent with I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"

namespace transload {

struct IoSlice {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

struct IoResult {
  std::exception_ptr error;    ///< null: done in full
  std::uint64_t checksum = 0;  ///< xxh3-64 of all bytes in order
  std::uint64_t busy_ns = 0;   ///< from first submission to last completion
  std::uint64_t begin_ns = 0;  ///< the first submission, on the host's steady clock
};

/// Called exactly once. Owned by the submitter, must live until then.
class Completion {
 public:
  virtual ~Completion() = default;
  virtual void done(const IoResult& result) noexcept = 0;
};

enum class IoPath : std::uint8_t { automatic, uring, threads };

/// One block's place in a commit.
struct StoredBlock {
  SlotId slot;                ///< invalid: never written; the content is `bytes` zeros (moments before the first step)
  std::uint64_t version = 0;  ///< of the content
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;  ///< xxh3-64; 0 where slot is invalid
};

/// What a commit says. `metadata` is JSON text: step, data position, random state, hyperparameters, layout, …
struct Manifest {
  std::uint64_t store_id = 0;  ///< whose it is: random, made with the store
  std::uint64_t sequence = 0;  ///< commits so far; set by Store::commit
  std::string metadata;
  std::vector<StoredBlock> blocks;  ///< by BlockId; durable blocks only are meaningful
};

struct StoreOptions {
  std::string folder;  ///< holds manifest, lock, slot files; created if missing
  IoPath io = IoPath::automatic;
  int queue_depth = 8;     ///< requests in flight a direction (one request: at most 4 MiB)
  int max_pending = 4096;  ///< blocks submitted and not done
  bool durable = true;     ///< false: --durability none; manifest marks the store open while in use
  std::uint64_t capacity_bytes = UINT64_MAX;
  /// For opening: which commit is wanted, by its sequence. A prepared commit of that number is finished (or, opened for
  /// reading, read), any other one is dropped. Nothing: the last one that was finished.
  std::optional<std::uint64_t> wanted = std::nullopt;
};

/// How many slots of which size a store has. Slot sizes are rounded up to the file's alignment.
struct SlotClass {
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;
};

class Store {
 public:
  /// Lays the files out, writes them through once (progress(done_bytes, total_bytes) about four times a second),
  /// takes the lock. InputError: folder is a file, in use by a living process (its pid), holds a store already;
  /// IoError: no space (wanted, free), read-only. A dead run's half-made store (no manifest) is reclaimed.
  static std::unique_ptr<Store> create(const StoreOptions& options, std::vector<SlotClass> classes,
                                       const std::function<void(std::uint64_t, std::uint64_t)>& progress);
  /// Opens the last commit, takes the lock, adds slots where `classes` asks for more than there are.
  /// DamageError: manifest damaged (which part), slot file truncated (path, wanted, got); open mark of a
  /// durability-none store that was not closed cleanly; the wanted commit is not there (what is).
  static std::unique_ptr<Store> open(const StoreOptions& options, std::vector<SlotClass> classes,
                                     const std::function<void(std::uint64_t, std::uint64_t)>& progress);
  /// Opens the last commit for submit_read alone (verify, export): changes nothing, may be opened many times at once
  /// and on a read-only file system. InputError while a process has it open for writing.
  static std::unique_ptr<Store> open_read_only(const StoreOptions& options);
  /// Reads a manifest without opening the store for writing (verify, export, plan). Takes no lock.
  static Manifest read_manifest(const std::string& folder, std::optional<std::uint64_t> wanted = std::nullopt);
  /// Whether anything was committed there and finished.
  static bool exists(const std::string& folder);
  /// The commit that was prepared there and neither finished nor dropped; nothing where there is none that is whole.
  static std::optional<Manifest> prepared(const std::string& folder);
  /// Removes a store, or what a dead run left of one: only what carries our mark, the manifest after the slots, and the
  /// folder where nothing else is in it. Nothing happens where there is no folder. InputError: in use.
  static void remove(const std::string& folder);
  virtual ~Store() = default;

  virtual const Manifest& committed() const = 0;

  /// A free slot of at least `bytes` (smallest class that fits); invalid when none is free.
  virtual SlotId allocate(std::uint64_t bytes) = 0;
  /// Free at once if no commit refers to it; otherwise after the next commit that does not.
  virtual void free(SlotId slot) = 0;

  /// Total of slices = `bytes` of the block. The slices array must live until completion. `block_name` for messages.
  virtual void submit_read(SlotId slot, std::span<const IoSlice> slices, std::uint64_t checksum, const char* block_name,
                           Completion* completion) = 0;
  virtual void submit_write(SlotId slot, std::span<const IoSlice> slices, const char* block_name,
                            Completion* completion) = 0;

  /// Makes data durable, writes the manifest under a temporary name, makes it durable, renames, makes the folder
  /// durable; then frees the slots that only the previous commit used. No I/O may be in flight. Strong guarantee: on
  /// an exception the previous commit is current and intact.
  virtual void commit(const std::string& metadata, std::span<const StoredBlock> blocks) = 0;

  /// A commit in two halves, for stores that commit together. prepare makes data and new manifest durable, the latter
  /// under its temporary name; nothing is freed and the previous commit is current. Then no block may be written until
  /// finish, which renames and frees, or drop, which removes it. After an exception of finish the commit is prepared or
  /// finished, and nothing more is committed by this object.
  virtual void prepare(const std::string& metadata, std::span<const StoredBlock> blocks) = 0;
  virtual void finish() = 0;
  virtual void drop() = 0;
  /// Marks a durability-none store as cleanly closed; call last.
  virtual void close() = 0;

  struct Facts {
    std::string io_path;        ///< "io_uring", "pread/pwrite"
    std::string io_reason;      ///< why not io_uring, empty when it is
    bool direct = false;        ///< O_DIRECT in use
    std::string direct_reason;  ///< why not
    std::uint64_t alignment = 0;
    std::string file_system;  ///< "ext4", "tmpfs", …
    std::uint64_t bytes_on_disk = 0;
    std::uint64_t bytes_read = 0, bytes_written = 0;    ///< by I/O of blocks
    std::uint64_t busy_read_ns = 0, busy_write_ns = 0;  ///< some request in flight
  };
  virtual Facts facts() const = 0;
};

}  // namespace transload
