#include "train/trainer.h"

#include <fmt/format.h>
#include <sched.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include "base/error.h"
#include "base/os.h"
#include "base/size.h"
#include "train/accelerator.h"
#include "train/comm_peers.h"
#include "train/input_file.h"
#include "train/inputs.h"
#include "train/loop.h"
#include "train/planning.h"
#include "train/resume.h"
#include "train/run_folder.h"
#include "train/same_settings.h"
#include "train/session.h"
#include "train/store_group.h"

namespace transload {

namespace {

constexpr std::uint64_t kMostAlgorithmsBytes = 64 * MiB;

/// Processors that this process may run on.
int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

void note_store(const TrainOptions& options, RunPlan& plan) {
  if (options.nvme_capacity == 0) {
    plan.notes.push_back("No store (--nvme-capacity 0): nothing is committed and this run cannot be resumed.");
    return;
  }
  if (!options.durable)
    plan.notes.push_back(
        "--durability none: the store can be opened again only after a clean end; a crash loses the run.");
}

std::uint64_t bytes_in(const std::string& folder) {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (entry.is_regular_file(error)) bytes += entry.file_size(error);
  return bytes;
}

void check_capacity(const TrainOptions& options, const RunPlan& plan) {
  if (plan.store_bytes <= options.nvme_capacity) return;
  const auto [wanted, given] = format_sizes(plan.store_bytes, options.nvme_capacity);
  throw InputError(
      fmt::format("The store takes {} and --nvme-capacity gives {}. Give at least --nvme-capacity {}MiB, "
                  "or --durability none, which needs no second slots.",
                  wanted, given, ceil_div(plan.store_bytes, MiB)));
}

/// Why the store will not fit on its drive; empty where it does. A plan may say so, a run is refused.
std::string lack_of_room(const std::string& folder, const RunPlan& plan) {
  const std::uint64_t wanted = plan.store_bytes - std::min(plan.store_bytes, bytes_in(folder));
  const std::uint64_t free_bytes = space_at(folder).free_bytes;
  if (wanted <= free_bytes) return {};
  const auto [wanted_text, free_text] = format_sizes(wanted, free_bytes);
  return fmt::format(
      "The store in {} needs {} more and its drive has {} free. Make room, or name a folder on another "
      "drive with --nvme.",
      folder, wanted_text, free_text);
}

void note_drive(const std::string& folder, RunPlan& plan) {
  const std::string lacking = lack_of_room(folder, plan);
  if (!lacking.empty()) plan.notes.push_back(lacking);
  const std::string kind = space_at(folder).file_system;
  if (kind == "tmpfs" || kind == "ramfs")
    plan.notes.push_back(fmt::format("The store's folder {} lies on {}, which is memory: its {} count as memory too.",
                                     folder, kind, format_size(plan.store_bytes)));
}

/// A new run must not meet a store, a resumed one must.
void check_stores(const TrainOptions& options, const RunStores& stores) {
  if (stores.current() && !options.resume)
    throw InputError(fmt::format(
        "The run {} holds a store already{}. Add --resume to go on with it, choose another --run folder, or "
        "remove both.",
        options.run, stores.place(0).empty() ? "" : ", in " + stores.place(0)));
  if (!stores.current() && options.resume)
    throw InputError(
        fmt::format("--resume: there is no store in {}. Leave --resume out to begin a run there.", options.run));
}

/// Where this rank's store lies or will lie. InputError: --nvme is not where it is, or of no use.
std::string place_of_own_store(const TrainOptions& options, const RunStores& stores, bool goes_on) {
  const Shards& shards = options.shards;
  const bool alone = shards.count == 1 && (goes_on ? stores.current()->group : stores.next_group()) == 0;
  if (alone || !options.nvme.empty()) {
    const std::string place = place_of_store(options);
    if (alone) return place;
  }
  return goes_on ? stores.place(shards.rank)
                 : place_of(stores.places(), stores.next_group(), shards.rank, shards.count);
}

}  // namespace

const char* name_of(DeviceKind kind) {
  return kind == DeviceKind::cpu ? "cpu" : kind == DeviceKind::emulated ? "emulated" : "cuda";
}

/// Samples of a step over all ranks, and this rank's micro-batches.
void resolve_batch(TrainOptions& options) {
  StepShape& shape = options.shape;
  const auto ranks = static_cast<std::int64_t>(options.shards.count);
  if (options.global_batch == 0) {
    shape.samples = shape.batch * shape.accumulate * ranks;
    return;
  }
  shape.samples = static_cast<std::int64_t>(options.global_batch);
  const auto each = ceil_div(options.global_batch, options.shards.count);
  const auto accumulate = static_cast<std::int64_t>(ceil_div(each, static_cast<std::uint64_t>(shape.batch)));
  if (shape.accumulate != 1 && shape.accumulate != accumulate)
    throw InputError(fmt::format(
        "--global-batch-size {} on {} rank{} is {} micro-batches of {} a rank, but --accumulate says {}. Leave "
        "--accumulate out.",
        options.global_batch, ranks, ranks == 1 ? "" : "s", accumulate, shape.batch, shape.accumulate));
  shape.accumulate = accumulate;
}

namespace {

/// The least budget in terms of the flag, which pays for the ranks' buffers as well.
[[noreturn]] void refuse_with_buffers(const BudgetError& error, const TrainOptions& options,
                                      const Communicator& communicator) {
  const bool on_device = communicator.tier() == Tier::device;
  if (communicator.size() == 1 || error.given_bytes != (on_device ? options.device_memory : options.host_memory))
    throw error;
  const std::uint64_t buffers = communicator.memory_bytes(), all = error.needed_bytes + buffers;
  throw BudgetError(fmt::format("{} The ranks' buffers of {} come on top of that: --{}-memory {}KiB in all.",
                                error.what(), format_size(buffers), on_device ? "device" : "host", ceil_div(all, KiB)),
                    all, error.given_bytes + buffers);
}

/// All ranks plan from the same budgets, the least of theirs; the communicator's buffers come out of the host's.
void agree_on_memory(TrainOptions& options, Communicator& communicator, std::vector<std::string>& notes) {
  if (communicator.size() == 1) return;
  const std::uint64_t buffers = communicator.memory_bytes();
  const bool on_device = communicator.tier() == Tier::device;
  std::uint64_t mine[] = {options.host_memory, options.device_memory};
  std::uint64_t& charged = mine[on_device ? 1 : 0];
  if (charged <= buffers)
    throw BudgetError(fmt::format("The ranks' buffers alone take {} and --{}-memory gives {}. Give more than that.",
                                  format_size(buffers), on_device ? "device" : "host", format_size(charged)),
                      buffers, charged);
  charged -= buffers;
  std::vector<std::uint64_t> all(2 * static_cast<std::size_t>(communicator.size()));
  communicator.exchange(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (std::size_t i = 0; i < all.size(); ++i) mine[i % 2] = std::min(mine[i % 2], all[i]);
  options.host_memory = mine[0];
  options.device_memory = mine[1];
  options.comm_bytes = buffers;
  notes.push_back(fmt::format("{} ranks by {}, {} of buffers each{}.", communicator.size(), communicator.transport(),
                              format_size(buffers),
                              communicator.note().empty() ? "" : fmt::format(" ({})", communicator.note())));
}

/// Summaries that an earlier start on more ranks left. Their records stay: they are what happened.
void remove_summaries(const std::string& run, std::uint32_t ranks) {
  const std::filesystem::path folder = run;
  std::error_code ignored;
  for (; path_exists((folder / name_for({ranks, ranks + 1}, "record.jsonl")).string()); ++ranks)
    std::filesystem::remove(folder / name_for({ranks, ranks + 1}, "summary.json"), ignored);
}

}  // namespace

struct Trainer::Impl {
  TrainOptions options;
  std::unique_ptr<Communicator> alone;
  Communicator& communicator;
  Observer observer;
  std::unique_ptr<Accelerator> accelerator;  // outlives the kernels in `prepared`
  Inputs inputs;
  CommPeers peers{communicator};
  std::optional<RunStores> stores;
  std::optional<ResumePoint> resume;
  std::string own_store;  ///< its folder; empty without one
  TrainOptions saved;     ///< for config.toml
  Prepared prepared;

  Impl(TrainOptions given, Observer observer_in, Communicator* communicator_in)
      : options(std::move(given)),
        alone(communicator_in == nullptr ? make_one_process() : nullptr),
        communicator(communicator_in == nullptr ? *alone : *communicator_in),
        observer(std::move(observer_in)) {
    const Place& place = communicator.place();
    options.shards = {static_cast<std::uint32_t>(place.rank), static_cast<std::uint32_t>(place.size)};
    options.ranks_here = static_cast<std::uint32_t>(place.local_size);
    options.comm_tier = communicator.tier();
    options.transport = communicator.transport();
    check_settings(options);
    resolve_batch(options);
    check_same_settings(options, communicator);
    if (options.threads == 0) options.threads = std::max(1, usable_processors() / static_cast<int>(options.ranks_here));
    const bool stored = options.nvme_capacity > 0;
    if (!options.run.empty() && place.rank == 0) RunFolder::check_usable(options.run);
    if (stored && !options.run.empty()) {
      check_nvme(options);
      stores.emplace(StorePlaces{.run = options.run, .nvme = options.nvme}, peers);
      check_stores(options, *stores);
    }
    inputs = open_model(options);
    if (options.resume) resume = resume_point(options, inputs, stores->meta());
    if (options.device == DeviceKind::cuda) accelerator = open_accelerator(place.local_rank);
    open_data(options, inputs);
    check_same_inputs(inputs, communicator);
    if (resume) check_resumed_data(options, inputs, *resume);
    std::vector<std::string> notes;
    resolve_memory(options, accelerator.get(), notes);
    saved = options;  // with the budget that is given, not what the ranks' buffers leave
    agree_on_memory(options, communicator, notes);
    try {
      prepared = prepare(options, inputs.config, resume ? resume->chunk_bytes : options.chunk_size, accelerator.get());
    } catch (const BudgetError& error) {
      refuse_with_buffers(error, options, communicator);
    }
    prepared.plan.notes.insert(prepared.plan.notes.begin(), notes.begin(), notes.end());
    if (stored) check_capacity(options, prepared.plan);
    if (stores) {
      own_store = place_of_own_store(options, *stores, resume && stores->fits(*prepared.code.layout));
      note_drive(own_store, prepared.plan);
    }
    note_store(options, prepared.plan);
    if (resume) prepared.plan.notes.insert(prepared.plan.notes.end(), resume->notes.begin(), resume->notes.end());
  }

  Position start() const {
    if (!resume) return {};
    const CheckpointMeta& meta = resume->meta;
    return {.step = meta.step,
            .steps_seen = meta.steps_seen,
            .samples_seen = meta.samples_seen,
            .skipped_in_a_row = meta.skipped_in_a_row};
  }

  /// Products as before the interruption, where the same library and device still make them.
  void use_algorithms() const {
    const std::string path = options.run + "/" + name_for(options.shards, kAlgorithmsFile);
    const bool known = os::kind_of(path) != os::PathKind::missing;
    if (known && accelerator->use_algorithms(read_text_file(path, kMostAlgorithmsBytes))) return;
    if (observer.say)
      observer.say(
          fmt::format("{} has no choice of matrix products for this GPU and its cuBLASLt: the bits of later "
                      "steps may differ from those of a run that was never interrupted.",
                      path));
  }

  std::string train(const std::atomic<int>& interrupt) {
    if (stores) {  // before anything is made or written
      const std::string lacking = lack_of_room(own_store, prepared.plan);
      if (!lacking.empty()) throw InputError(lacking);
    }
    const bool leads = communicator.rank() == 0;
    const RunFolder folder(options.run, leads ? RunFolder::Use::lead : RunFolder::Use::join);
    saved.chunk_size = options.chunk_size;
    if (leads) folder.write_file("config.toml", config_toml(saved));
    if (leads) remove_summaries(options.run, options.shards.count);
    communicator.barrier();  // the folder is there and locked
    if (stores) stores->reclaim();
    if (observer.planned) observer.planned(prepared.plan);
    if (accelerator && resume) use_algorithms();
    Session session(options, prepared, inputs, resume, stores ? &*stores : nullptr, accelerator.get(), communicator,
                    observer);
    Loop loop(options, prepared, inputs, folder, session, observer, start());
    std::string summary = loop.run(interrupt);
    session.close();
    return summary;
  }
};

Trainer::Trainer(TrainOptions options, Observer observer, Communicator* communicator)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(observer), communicator)) {}

Trainer::~Trainer() = default;

const RunPlan& Trainer::plan() const { return impl_->prepared.plan; }

const TrainOptions& Trainer::options() const { return impl_->options; }

std::string Trainer::run(const std::atomic<int>& interrupt) {
  if (impl_->options.run.empty()) throw InputError("--run is missing: the folder that the run fills.");
  const auto threads = static_cast<std::size_t>(impl_->options.threads);
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
  tbb::task_arena arena(impl_->options.threads);
  std::string summary;
  arena.execute([&] { summary = impl_->train(interrupt); });
  return summary;
}

}  // namespace transload
