#include "offload/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <random>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/os.h"
#include "base/size.h"
#include "offload/io_queue.h"
#include "offload/manifest_file.h"
#include "offload/slot_file.h"
#include "offload/slot_fill.h"
#include "offload/slot_table.h"
#include "offload/store_folder.h"

namespace transload {
namespace {

using Progress = std::function<void(std::uint64_t, std::uint64_t)>;

constexpr std::uint64_t kManifestRoom = 4 * MiB;  // beside the slots, in the count against the capacity

/// One extent's file.
struct SlotFile {
  os::File file;
  std::uint64_t slot_bytes = 0;
  std::atomic<bool> dirty{false};  // written since it was last made durable
};

class StoreImpl final : public Store {
 public:
  enum class How { create, open, read };

  StoreImpl(const StoreOptions& options, How how, std::vector<SlotClass> classes, const Progress& progress)
      : options_(options),
        how_(how),
        folder_(options.folder, use_of(how)),
        slots_(options.durable || how == How::read),
        writer_(folder_.manifest_path(), folder_.temporary_path()) {
    if (how == How::create) {
      lay_out(std::move(classes), progress);
    } else {
      take_over();
      if (how == How::open) grow(std::move(classes), progress);
    }
  }

  const Manifest& committed() const override { return committed_; }
  SlotId allocate(std::uint64_t bytes) override { return slots_.allocate(bytes); }
  void free(SlotId slot) override { slots_.free(slot); }

  void submit_read(SlotId slot, std::span<const IoSlice> slices, std::uint64_t checksum, const char* block_name,
                   Completion* completion) override {
    const SlotTable::Place place = check_place(slot, slices, block_name);
    const SlotFile& file = *files_[place.extent];
    reads_->submit({&file.file, offset_of(place), slices, true, checksum, block_name, completion});
  }

  void submit_write(SlotId slot, std::span<const IoSlice> slices, const char* block_name,
                    Completion* completion) override {
    const SlotTable::Place place = check_place(slot, slices, block_name);
    TRANSLOAD_CHECK(how_ != How::read && slots_.note_write(slot), "{}: slot {} is free, or the last commit needs it",
                    block_name, slot.value);
    TRANSLOAD_CHECK(!prepared_, "{}: a write while a commit is prepared", block_name);
    SlotFile& file = *files_[place.extent];
    file.dirty.store(true, std::memory_order_relaxed);
    writes_->submit({&file.file, offset_of(place), slices, false, 0, block_name, completion});
  }

  void commit(const std::string& metadata, std::span<const StoredBlock> blocks) override;
  void prepare(const std::string& metadata, std::span<const StoredBlock> blocks) override;
  void finish() override;
  void drop() override;
  void close() override;
  Facts facts() const override;

 private:
  static StoreFolder::Use use_of(How how) {
    return how == How::create ? StoreFolder::Use::make
           : how == How::open ? StoreFolder::Use::write
                              : StoreFolder::Use::read;
  }

  void lay_out(std::vector<SlotClass> classes, const Progress& progress);
  void take_over();
  void grow(std::vector<SlotClass> classes, const Progress& progress);
  std::vector<SlotClass> missing(std::vector<SlotClass> classes) const;
  void check_room(std::span<const SlotClass> extents) const;
  void add_files(const std::vector<SlotClass>& classes, const Progress& progress);
  void make_files(const std::vector<SlotClass>& classes);
  void fill_files(std::size_t first, const Progress& progress);
  void reserve_space(const os::File& file, std::uint64_t bytes) const;
  void open_files();
  void start_queues();
  void sync_files();
  void sync_folder();
  void begin_commit(const std::string& metadata, std::span<const StoredBlock> blocks);
  void end_commit(const std::string& metadata, std::span<const StoredBlock> blocks);
  void write_manifest(const Manifest& manifest, bool open_mark, bool durable);
  void put_in_place();
  ManifestWriter::Parts parts(std::uint64_t sequence, std::string_view metadata, std::span<const StoredBlock> blocks,
                              bool open_mark) const {
    return {committed_.store_id, sequence, open_mark, slots_.extents(), blocks, metadata};
  }
  std::uint64_t bytes_on_disk() const;

  static std::uint64_t offset_of(const SlotFile& file, std::uint64_t index) {
    return SlotFileHeader::kBytes + index * file.slot_bytes;
  }
  std::uint64_t offset_of(const SlotTable::Place& place) const { return offset_of(*files_[place.extent], place.index); }
  SlotFileHeader header_of(std::size_t number) const { return {committed_.store_id, number, slots_.extents()[number]}; }

  SlotTable::Place check_place(SlotId slot, std::span<const IoSlice> slices, const char* name) const {
    std::uint64_t bytes = 0;
    for (const IoSlice& slice : slices) bytes += slice.bytes;
    const SlotTable::Place place = slots_.place(slot);
    TRANSLOAD_CHECK(bytes <= files_[place.extent]->slot_bytes, "{}: {} bytes for a slot of {}", name, bytes,
                    files_[place.extent]->slot_bytes);
    return place;
  }

  const StoreOptions options_;
  const How how_;
  StoreFolder folder_;
  SlotTable slots_;
  ManifestWriter writer_;
  Manifest committed_;
  std::optional<Manifest> prepared_;  // between prepare and finish
  DirectIo direct_{true, "", IoQueue::kMemoryAlignment};
  std::vector<std::unique_ptr<SlotFile>> files_;  // by extent
  std::unique_ptr<IoQueue> reads_, writes_;       // after files_: they end before files are closed
  std::exception_ptr failure_;                    // what makes further commits untrustworthy
};

/// Sizes rounded up to the alignment, equal ones together, ascending.
std::vector<SlotClass> rounded(std::vector<SlotClass> classes, std::uint64_t alignment) {
  std::vector<SlotClass> result;
  for (SlotClass& c : classes) {
    TRANSLOAD_CHECK(c.bytes > 0 || c.count == 0, "{} slots of no bytes", c.count);
    c.bytes = round_up(c.bytes, alignment);
  }
  std::sort(classes.begin(), classes.end(), [](const SlotClass& a, const SlotClass& b) { return a.bytes < b.bytes; });
  for (const SlotClass& c : classes) {
    if (c.count == 0) continue;
    if (!result.empty() && result.back().bytes == c.bytes) {
      result.back().count += c.count;
    } else {
      result.push_back(c);
    }
  }
  return result;
}

void StoreImpl::lay_out(std::vector<SlotClass> classes, const Progress& progress) {
  if (os::kind_of(folder_.manifest_path()) != os::PathKind::missing) {
    throw InputError(
        fmt::format("There is a store in {} already. Resume it, or choose another folder.", options_.folder));
  }
  folder_.reclaim(0);
  std::random_device random;
  committed_.store_id = static_cast<std::uint64_t>(random()) << 32 | random();
  add_files(classes, progress);
}

void StoreImpl::take_over() {
  bool prepared = false;
  ManifestContent content = read_commit(folder_.manifest_path(), folder_.temporary_path(), options_.wanted, &prepared);
  if (content.open) {
    throw DamageError(fmt::format(
        "The store in {} was kept with --durability none and not closed cleanly: its blocks are of different steps. "
        "Begin anew in another folder.",
        options_.folder));
  }
  committed_ = std::move(content.manifest);
  for (const SlotClass& extent : content.extents) {
    if (extent.bytes == 0 || extent.count == 0 || extent.count >= UINT32_MAX - slots_.count()) {
      throw DamageError(
          fmt::format("{} says {} slots of {} bytes.", folder_.manifest_path(), extent.count, extent.bytes));
    }
    slots_.add_extent(extent);
  }
  if (!slots_.adopt(committed_.blocks)) {
    throw DamageError(
        fmt::format("{} names a slot that does not exist, is too small, or is taken twice.", folder_.manifest_path()));
  }
  open_files();
  if (how_ == How::open) {
    if (prepared) put_in_place();
    folder_.reclaim(slots_.extents().size());
  }
  start_queues();
}

void StoreImpl::grow(std::vector<SlotClass> classes, const Progress& progress) {
  const std::vector<SlotClass> more = missing(std::move(classes));
  if (!more.empty()) add_files(more, progress);
  if (more.empty() && options_.durable) return;
  write_manifest(committed_, !options_.durable, true);
}

std::vector<SlotClass> StoreImpl::missing(std::vector<SlotClass> classes) const {
  std::vector<SlotClass> more = rounded(std::move(classes), direct_.alignment);
  for (SlotClass& c : more) c.count -= std::min(c.count, slots_.count_of(c.bytes));
  std::erase_if(more, [](const SlotClass& c) { return c.count == 0; });
  return more;
}

void StoreImpl::check_room(std::span<const SlotClass> extents) const {
  std::uint64_t wanted = 0;
  for (const SlotClass& c : extents) wanted += SlotFileHeader{0, 0, c}.file_bytes();
  const std::uint64_t there = bytes_on_disk() + kManifestRoom;
  if (wanted > options_.capacity_bytes || there > options_.capacity_bytes - wanted) {
    throw BudgetError(fmt::format("The store in {} needs {} and may take {}. Raise --nvme-capacity, give more host "
                                  "memory, or use --durability none (no second slots).",
                                  options_.folder, format_size(there + wanted), format_size(options_.capacity_bytes)),
                      there + wanted, options_.capacity_bytes);
  }
  os::Space space;
  if (os::space_of(options_.folder, &space) < 0 || wanted + kManifestRoom <= space.free_bytes) return;
  throw IoError({"allocate", options_.folder, "", 0, wanted + kManifestRoom, space.free_bytes, ENOSPC,
                 fmt::format("The store wants {} more and {} are free. Free space, or choose a folder on another disk.",
                             format_size(wanted + kManifestRoom), format_size(space.free_bytes))});
}

void StoreImpl::add_files(const std::vector<SlotClass>& classes, const Progress& progress) {
  const std::size_t first = files_.size();
  try {
    make_files(classes);
    open_files();
    if (writes_ == nullptr) start_queues();
    fill_files(first, progress);
    if (options_.durable) folder_.sync();
  } catch (...) {
    writes_.reset();
    reads_.reset();
    files_.resize(first);
    try {
      folder_.reclaim(first);
    } catch (const Error&) {
      // The first error tells more; the next run reclaims the rest.
    }
    throw;
  }
}

void StoreImpl::make_files(const std::vector<SlotClass>& classes) {
  const std::size_t first = files_.size();
  // The first file, still empty, tells the alignment that slots are rounded to.
  os::File file = make_slot_file(folder_.slots_path(first), &direct_);
  const std::vector<SlotClass> extents = rounded(classes, direct_.alignment);
  check_room(extents);
  for (const SlotClass& extent : extents) {
    const std::size_t number = slots_.extents().size();
    DirectIo same;
    if (number > first) file = make_slot_file(folder_.slots_path(number), &same);
    slots_.add_extent(extent);
    write_slot_header(file, header_of(number));
    reserve_space(file, header_of(number).file_bytes());
  }
  if (extents.empty()) {
    file.close();
    folder_.reclaim(first);
  }
}

void StoreImpl::fill_files(std::size_t first, const Progress& progress) {
  std::vector<FillRange> ranges;
  for (std::size_t i = first; i < files_.size(); ++i) {
    ranges.push_back({&files_[i]->file, SlotFileHeader::kBytes, header_of(i).file_bytes() - SlotFileHeader::kBytes});
    files_[i]->dirty = true;
  }
  if (!ranges.empty()) fill_with_zeros(writes_.get(), ranges, progress);
  if (options_.durable) sync_files();
}

void StoreImpl::reserve_space(const os::File& file, std::uint64_t bytes) const {
  std::int64_t result = file.allocate(bytes);
  // A file system without fallocate finds its room while the file is written through.
  if (result == -EOPNOTSUPP || result == -ENOSYS || result == -EINVAL) result = file.truncate(bytes);
  if (result >= 0) return;
  os::Space space;
  os::space_of(options_.folder, &space);
  throw IoError(
      {"allocate", file.path(), "", 0, bytes, 0, static_cast<int>(-result),
       fmt::format("{} are free. Free space, or choose a folder on another disk.", format_size(space.free_bytes))});
}

void StoreImpl::open_files() {
  const bool was_direct = direct_.on;
  for (std::size_t i = files_.size(); i < slots_.extents().size(); ++i) {
    auto file = std::make_unique<SlotFile>();
    file->slot_bytes = slots_.extents()[i].bytes;
    file->file = open_slot_file(folder_.slots_path(i), how_ != How::read, header_of(i), &direct_);
    files_.push_back(std::move(file));
  }
  // One answer for all files: lengths on disk depend on it.
  if (was_direct && !direct_.on && reads_ == nullptr && files_.size() > 1) {
    files_.clear();
    open_files();
  }
}

void StoreImpl::start_queues() {
  if (files_.empty()) return;
  IoQueue::Options options{
      false,       direct_.on,           direct_.alignment, options_.queue_depth, options_.max_pending,
      options_.io, &files_.front()->file};
  reads_ = std::make_unique<IoQueue>(options);
  if (how_ == How::read) return;
  options.write = true;
  writes_ = std::make_unique<IoQueue>(options);
}

void StoreImpl::sync_files() {
  for (const auto& file : files_) {
    if (!file->dirty.exchange(false)) continue;
    const std::int64_t result = file->file.sync();
    if (result == 0) continue;
    // The kernel forgets what it could not write after saying so once: nothing written since the last commit can be
    // trusted any more, so nothing may be committed any more.
    IoError error({"fdatasync", file->file.path(), "", 0, 0, 0, static_cast<int>(-result),
                   "The store stays as last committed; nothing more is committed."});
    failure_ = std::make_exception_ptr(error);
    throw error;
  }
}

void StoreImpl::sync_folder() {
  try {
    folder_.sync();
  } catch (...) {
    // Which names a crash would leave is open, so both manifests keep their slots and no third one is written.
    failure_ = std::current_exception();
    throw;
  }
}

/// What is known of a full drive besides.
IoError with_free_space(const IoError& error, const std::string& folder) {
  IoError::Details details = error.details();
  os::Space space;
  if (details.error == ENOSPC && details.advice.empty() && os::space_of(folder, &space) == 0) {
    details.advice = fmt::format("{} are free. Free space; the last commit is whole.", format_size(space.free_bytes));
  }
  return IoError(details);
}

void StoreImpl::write_manifest(const Manifest& manifest, bool open_mark, bool durable) {
  writer_.prepare(parts(manifest.sequence, manifest.metadata, manifest.blocks, open_mark));
  try {
    writer_.write(durable);
    writer_.rename();
  } catch (const IoError& error) {
    throw with_free_space(error, options_.folder);
  }
  if (durable) sync_folder();
}

void StoreImpl::put_in_place() {
  writer_.rename();
  if (options_.durable) sync_folder();
}

/// Data durable, the new manifest under its temporary name.
void StoreImpl::begin_commit(const std::string& metadata, std::span<const StoredBlock> blocks) {
  TRANSLOAD_CHECK(how_ != How::read, "a commit to a store opened for reading");
  TRANSLOAD_CHECK(!prepared_, "a commit while commit {} is prepared", prepared_->sequence);
  TRANSLOAD_CHECK(writes_ == nullptr || writes_->pending() == 0, "{} writes are under way at a commit",
                  writes_->pending());
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  if (committed_.blocks.capacity() < blocks.size()) committed_.blocks.reserve(blocks.size());
  if (committed_.metadata.capacity() < metadata.size()) committed_.metadata.reserve(2 * metadata.size());
  if (options_.durable) sync_files();
  writer_.prepare(parts(committed_.sequence + 1, metadata, blocks, !options_.durable));
  writer_.write(options_.durable);
}

/// The new manifest is in place: what the previous one alone used is free.
void StoreImpl::end_commit(const std::string& metadata, std::span<const StoredBlock> blocks) {
  slots_.commit(blocks);
  ++committed_.sequence;
  committed_.metadata.assign(metadata);
  committed_.blocks.assign(blocks.begin(), blocks.end());
}

void StoreImpl::commit(const std::string& metadata, std::span<const StoredBlock> blocks) {
  try {
    begin_commit(metadata, blocks);
    put_in_place();
  } catch (const IoError& error) {
    throw with_free_space(error, options_.folder);
  }
  end_commit(metadata, blocks);
}

void StoreImpl::prepare(const std::string& metadata, std::span<const StoredBlock> blocks) {
  try {
    begin_commit(metadata, blocks);
    if (options_.durable) sync_folder();
  } catch (const IoError& error) {
    throw with_free_space(error, options_.folder);
  }
  prepared_ = Manifest{committed_.store_id, committed_.sequence + 1, metadata, {blocks.begin(), blocks.end()}};
}

void StoreImpl::finish() {
  TRANSLOAD_CHECK(prepared_, "nothing was prepared after commit {}", committed_.sequence);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  try {
    put_in_place();
  } catch (...) {
    failure_ = std::current_exception();  // the other stores of this commit have it: there is no way back
    throw;
  }
  end_commit(prepared_->metadata, prepared_->blocks);
  prepared_.reset();
}

void StoreImpl::drop() {
  TRANSLOAD_CHECK(prepared_, "nothing was prepared after commit {}", committed_.sequence);
  prepared_.reset();
  os::remove(folder_.temporary_path());  // where it stays, opening the commit before drops it
}

void StoreImpl::close() {
  if (how_ == How::read) return;
  // Without durability the last commit is whole only if nothing of it was overwritten; else the open mark stays.
  if (!options_.durable && committed_.sequence > 0 && !slots_.commit_overwritten() && failure_ == nullptr) {
    sync_files();
    write_manifest(committed_, false, true);
  }
  folder_.forget_process();
}

std::uint64_t StoreImpl::bytes_on_disk() const {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < files_.size(); ++i) bytes += header_of(i).file_bytes();
  return bytes;
}

Store::Facts StoreImpl::facts() const {
  Facts facts;
  const bool read_ring = reads_ != nullptr && reads_->uses_uring();
  const bool write_ring = writes_ == nullptr ? read_ring : writes_->uses_uring();
  facts.io_path = read_ring && write_ring ? "io_uring" : "pread/pwrite";
  if (read_ring != write_ring) {
    facts.io_path = read_ring ? "io_uring (read), pread/pwrite (write)" : "pread/pwrite (read), io_uring (write)";
  }
  if (reads_ != nullptr) facts.io_reason = reads_->refusal();
  if (writes_ != nullptr && facts.io_reason.empty()) facts.io_reason = writes_->refusal();
  facts.direct = direct_.on;
  facts.direct_reason = direct_.refusal;
  facts.alignment = direct_.alignment;
  os::Space space;
  if (os::space_of(options_.folder, &space) == 0) facts.file_system = space.file_system;
  facts.bytes_on_disk = bytes_on_disk() + writer_.bytes();
  if (reads_ != nullptr) facts.bytes_read = reads_->bytes(), facts.busy_read_ns = reads_->busy_ns();
  if (writes_ != nullptr) facts.bytes_written = writes_->bytes(), facts.busy_write_ns = writes_->busy_ns();
  return facts;
}

}  // namespace

std::unique_ptr<Store> Store::create(const StoreOptions& options, std::vector<SlotClass> classes,
                                     const Progress& progress) {
  return std::make_unique<StoreImpl>(options, StoreImpl::How::create, std::move(classes), progress);
}
std::unique_ptr<Store> Store::open(const StoreOptions& options, std::vector<SlotClass> classes,
                                   const Progress& progress) {
  return std::make_unique<StoreImpl>(options, StoreImpl::How::open, std::move(classes), progress);
}
std::unique_ptr<Store> Store::open_read_only(const StoreOptions& options) {
  return std::make_unique<StoreImpl>(options, StoreImpl::How::read, std::vector<SlotClass>{}, Progress{});
}
Manifest Store::read_manifest(const std::string& folder, std::optional<std::uint64_t> wanted) {
  bool prepared = false;
  return read_commit(StoreFolder::manifest_path(folder), StoreFolder::temporary_path(folder), wanted, &prepared)
      .manifest;
}
std::optional<Manifest> Store::prepared(const std::string& folder) {
  const std::string path = StoreFolder::temporary_path(folder);
  if (os::kind_of(path) != os::PathKind::file) return std::nullopt;
  try {
    return read_manifest_file(path).manifest;
  } catch (const DamageError&) {
    return std::nullopt;  // half-written
  }
}
void Store::remove(const std::string& folder) {
  if (os::kind_of(folder) != os::PathKind::missing) StoreFolder(folder, StoreFolder::Use::write).remove();
}
bool Store::exists(const std::string& folder) {
  return os::kind_of(StoreFolder::manifest_path(folder)) == os::PathKind::file;
}

}  // namespace transload
