#include "train/planning.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/size.h"
#include "chunk/chunk_search.h"
#include "plan/liveness.h"
#include "plan/residency.h"
#include "train/fits.h"
#include "train/taken_memory.h"
#include "train/update_choice.h"

namespace transload {

namespace {

constexpr std::size_t kManyBlocks = 20000;  // planning more than these takes seconds: only where nothing else fits
constexpr std::uint64_t kMostChunks = std::uint64_t{1} << 18;  // more take minutes and gigabytes to plan
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 60;
constexpr std::uint64_t kInFlightBlocks = 8;  // that transfers on their way may take
constexpr std::uint64_t kSlotGrain = 4096;    // slots are multiples of the file's alignment, at most this

bool has_device(const TrainOptions& options) { return options.device != DeviceKind::cpu; }

/// The most of a tier that any trace of the run needs pinned at once.
LeastBudget least_of(const StepCode& code, std::uint64_t frame_bytes, bool device) {
  LeastBudget least;
  for (const Trace* trace : {&code.step, &code.fresh_step, &code.evaluation, &code.setup}) {
    const LeastBudget one = least_budget(*trace, code.blocks, frame_bytes, device);
    if (one.device_bytes > least.device_bytes) {
      least.device_bytes = one.device_bytes;
      least.tick[0] = one.tick[0];
    }
    if (one.host_bytes > least.host_bytes) {
      least.host_bytes = one.host_bytes;
      least.tick[1] = one.tick[1];
    }
  }
  return least;
}

std::uint64_t peak_workspace(const StepCode& code, Tier tier) {
  std::uint64_t peak = 0;
  for (const Trace* trace : {&code.step, &code.fresh_step, &code.evaluation})
    for (const WorkspaceChange& change : trace->workspace)
      if (change.tier == tier) peak = std::max(peak, change.bytes);
  return peak;
}

std::uint64_t largest_block(const StepCode& code) {
  std::uint64_t largest = 0;
  for (const BlockSpec& block : code.blocks) largest = std::max(largest, block.bytes);
  return largest;
}

/// Of a plane of all ranks' elements: a chunk's are there only while they are gathered or summed.
bool is_whole(const Layout& layout, const BlockSpec& block) {
  const int plane = layout.plane(block.plane);
  return plane >= 0 && layout.planes()[static_cast<std::size_t>(plane)].whole;
}

/// The most of the whole planes that has content at once in any pass.
Live most_whole(
    const StepCode& code, std::uint64_t frame_bytes,
    const std::function<bool(const BlockSpec&)>& counts = [](const BlockSpec&) { return true; }) {
  Live most;
  if (code.layout->shards().count == 1) return most;
  for (const Trace* trace : {&code.step, &code.fresh_step, &code.evaluation}) {
    const Live live = most_live(*trace, code.blocks, frame_bytes,
                                [&](const BlockSpec& block) { return is_whole(*code.layout, block) && counts(block); });
    most = {std::max(most.blocks, live.blocks), std::max(most.bytes, live.bytes)};
  }
  return most;
}

/// What a tier takes when nothing ever has to leave it, room for transfers on their way included.
std::uint64_t everything(const StepCode& code, Tier tier, std::uint64_t frame_bytes) {
  std::uint64_t bytes = round_up(peak_workspace(code, tier), frame_bytes) + most_whole(code, frame_bytes).bytes;
  for (const BlockSpec& block : code.blocks)
    if (!is_whole(*code.layout, block)) bytes += round_up(block.bytes, frame_bytes);
  return bytes + kInFlightBlocks * round_up(largest_block(code), frame_bytes);
}

/// A durable block that changes has a slot that the last commit refers to and one for what comes after; without
/// durability, and for blocks that never change or never are committed, one is enough. Blocks on their way hold a slot
/// more for a moment. Of whole planes as many as have content at once.
std::vector<SlotClass> slot_classes(const StepCode& code, const TrainOptions& options) {
  constexpr std::uint64_t kOnTheirWay = 8;
  std::map<std::uint64_t, SlotClass> classes;
  const Layout& layout = *code.layout;
  for (std::size_t b = 0; b < code.blocks.size(); ++b) {
    const BlockSpec& block = code.blocks[b];
    const bool in_layout = b < layout.blocks().size();
    const bool frozen = in_layout && layout.chunk(layout.chunk_of(BlockId(b))).frozen;
    SlotClass& slots = classes[round_up(block.bytes, kSlotGrain)];
    if (is_whole(layout, block)) continue;
    slots.count += block.durable && !frozen && options.durable ? 2 : 1;
  }
  for (auto& [bytes, slots] : classes)
    slots.count += most_whole(code, kSlotGrain, [size = bytes](const BlockSpec& block) {
                     return round_up(block.bytes, kSlotGrain) == size;
                   }).blocks;
  std::vector<SlotClass> out;
  out.reserve(classes.size());
  for (auto& [bytes, slots] : classes)
    out.push_back({.bytes = bytes, .count = slots.count + std::min(slots.count, kOnTheirWay)});
  return out;
}

/// On disk: slots, a header a file, and room for two manifests, as the store counts.
std::uint64_t store_bytes(const std::vector<SlotClass>& slots) {
  if (slots.empty()) return 0;
  std::uint64_t bytes = 4 * MiB;
  for (const SlotClass& s : slots) bytes += kSlotGrain + s.bytes * s.count;
  return bytes;
}

/// Least budgets that the whole run needs. Without a store nothing can leave the host.
LeastBudget needed(const StepCode& code, const TrainOptions& options, std::uint64_t frame_bytes) {
  LeastBudget least = least_of(code, frame_bytes, has_device(options));
  if (options.nvme_capacity == 0)
    least.host_bytes = std::max(least.host_bytes, everything(code, Tier::host, frame_bytes));
  return least;
}

bool fits(const LeastBudget& least, const TrainOptions& options) {
  return least.host_bytes <= options.host_memory &&
         (!has_device(options) || least.device_bytes <= options.device_memory);
}

Budgets budgets_of(const StepCode& code, const TrainOptions& options, std::uint64_t frame_bytes) {
  const auto share = [&](std::uint64_t given, Tier tier) {
    return std::min(given, everything(code, tier, frame_bytes)) / frame_bytes * frame_bytes;
  };
  Budgets budgets;
  budgets.frame_bytes = frame_bytes;
  budgets.host_bytes = share(options.host_memory, Tier::host);
  if (has_device(options)) budgets.device_bytes = share(options.device_memory, Tier::device);
  budgets.nvme_bytes = options.nvme_capacity;
  return budgets;
}

/// Room that transfers on their way may take: eight of the largest blocks that always move, or one of the largest of
/// all, but never more than half of what is left above the least budget.
std::uint64_t in_flight_room(const StepCode& code, const Budgets& budgets, const LeastBudget& least) {
  std::uint64_t room = std::max(kInFlightBlocks * round_up(largest_durable(code.blocks), budgets.frame_bytes),
                                round_up(largest_block(code), budgets.frame_bytes));
  room = std::min(room, (budgets.host_bytes - std::min(budgets.host_bytes, least.host_bytes)) / 2);
  if (budgets.device_bytes > 0)
    room = std::min(room, (budgets.device_bytes - std::min(budgets.device_bytes, least.device_bytes)) / 2);
  return room / budgets.frame_bytes * budgets.frame_bytes;
}

void count_parameters(const Layout& layout, RunPlan& plan) {
  for (const ParamSpec& param : layout.params()) {
    plan.parameters += param.elements();
    if (!param.frozen) plan.trainable += param.elements();
  }
}

void count_planes(const StepCode& code, RunPlan& plan) {
  plan.transient_bytes += most_whole(code, 1).bytes;
  for (const BlockSpec& block : code.blocks) {
    if (is_whole(*code.layout, block)) continue;
    (block.durable ? plan.durable_bytes : plan.transient_bytes) += block.bytes;
    auto row = std::find_if(plan.planes.begin(), plan.planes.end(),
                            [&](const RunPlan::PlaneRow& r) { return r.plane == block.plane; });
    if (row == plan.planes.end())
      row = plan.planes.insert(plan.planes.end(), {.plane = block.plane, .durable = block.durable, .bytes = 0});
    row->bytes += block.bytes;
  }
}

void place_planes(const StepCode& code, RunPlan& plan) {
  const std::vector<Tier> where = residency(code.step, plan.plan, code.blocks.size());
  for (std::size_t b = 0; b < code.blocks.size(); ++b)
    for (RunPlan::PlaneRow& row : plan.planes) {
      if (row.plane != code.blocks[b].plane) continue;
      if (where[b] == Tier::device) row.device_bytes += code.blocks[b].bytes;
      if (where[b] == Tier::host) row.host_bytes += code.blocks[b].bytes;
    }
}

std::uint64_t updated_chunks(const Layout& layout) {
  const auto updated = [](const Chunk& chunk) { return !chunk.frozen; };
  return static_cast<std::uint64_t>(std::count_if(layout.chunks().begin(), layout.chunks().end(), updated));
}

/// Lets the device update as many chunks as make its links carry least; the least budgets of the run then. A chunk's
/// state that stays on the device moves nothing; on the host its gradient comes down and its weights go up. The first
/// chunks are the device's: they are the last of backward, so their gradients lie there for the shortest time, and the
/// weights of the others are those that are used again soonest after the forward pass.
LeastBudget choose_updates(StepCode& code, const LeastBudget& least, const TrainOptions& options) {
  if (!has_device(options)) return least;
  const std::uint64_t frame_bytes = frame_bytes_for(code.layout->chunk_bytes());
  const auto link_bytes = [&](std::uint64_t count) {
    set_device_updates(code, options, count);
    const LeastBudget with = needed(code, options, frame_bytes);
    if (!fits(with, options)) return UINT64_MAX;
    const Budgets budgets = budgets_of(code, options, frame_bytes);
    return device_link_bytes(code, budgets, in_flight_room(code, budgets, with));
  };
  set_device_updates(code, options, choose_device_updates(updated_chunks(*code.layout), link_bytes));
  return needed(code, options, frame_bytes);
}

std::size_t gathers_of(const StepCode& code) {
  std::size_t count = 0;
  for (const GatherPlan::Use& use : code.gathers.front().uses) count += use.gather.size();
  return count;
}

/// Room for gathered chunks: more where that gathers less in a step, for as long as it leaves half of the budget.
LeastBudget choose_gathers(StepCode& code, const LeastBudget& least, const TrainOptions& options) {
  constexpr std::size_t kRooms[] = {2, 3, 4, 6, 8, 12, 16, 24, 32};
  if (options.shards.count == 1) return least;
  const std::uint64_t frame_bytes = frame_bytes_for(code.layout->chunk_bytes());
  std::size_t best_room = 1, fewest = SIZE_MAX;
  LeastBudget best = least;
  for (const std::size_t room : kRooms) {
    set_gather_room(code, options, room);
    const LeastBudget with = needed(code, options, frame_bytes);
    const bool spacious = room == 2 || most_whole(code, frame_bytes).bytes <= options.host_memory / 2;
    if (!fits(with, options) || !spacious) break;
    if (gathers_of(code) >= fewest) continue;
    best_room = room;
    fewest = gathers_of(code);
    best = with;
  }
  set_gather_room(code, options, best_room);
  return best;
}

/// `least`: with all updates on the host and room for one gathered chunk, the least that is accepted.
Prepared plan_for(StepCode code, const LeastBudget& least, const TrainOptions& options, const ModelConfig& config) {
  const LeastBudget with_gathers = choose_gathers(code, least, options);
  const LeastBudget with_updates = choose_updates(code, with_gathers, options);
  Prepared prepared;
  RunPlan& plan = prepared.plan;
  plan.config = config;
  plan.chunk_size = code.layout->chunk_bytes();
  plan.chunks = code.layout->chunks().size();
  plan.frame_bytes = frame_bytes_for(plan.chunk_size);
  plan.least_host_bytes = least.host_bytes;
  plan.least_device_bytes = least.device_bytes;
  plan.budgets = budgets_of(code, options, plan.frame_bytes);
  plan.workspace_bytes = peak_workspace(code, compute_tier(options));
  count_parameters(*code.layout, plan);
  count_planes(code, plan);
  if (options.nvme_capacity > 0) prepared.slots = slot_classes(code, options);
  plan.store_bytes = store_bytes(prepared.slots);
  plan.updated_chunks = updated_chunks(*code.layout);
  plan.device_updates = code.device_updates;
  const std::uint64_t most_room = in_flight_room(code, plan.budgets, with_updates);
  prepared.code = std::move(code);
  plan_memory(prepared, most_room, with_updates, options);
  place_planes(prepared.code, plan);
  return prepared;
}

/// What a chunk size costs a step beside the room it wastes, in bytes: what it moves, and a share of the least budget,
/// since the store keeps its chunk size and a later run may have less memory.
std::uint64_t cost_of(const Prepared& prepared) {
  std::uint64_t cost = (prepared.plan.least_host_bytes + prepared.plan.least_device_bytes) / 8;
  for (const std::uint64_t bytes : prepared.plan.plan.bytes) cost += bytes;
  return cost;
}

/// A size as a flag that holds it, rounded up.
std::string flag_size(std::uint64_t bytes) {
  return bytes < 16 * MiB ? fmt::format("{}KiB", ceil_div(bytes, KiB)) : fmt::format("{}MiB", ceil_div(bytes, MiB));
}

/// Changes that might make a step fit, tried one at a time.
struct Remedy {
  std::string flag;
  TrainOptions options;
  std::uint64_t chunk_bytes;
};
std::vector<Remedy> remedies(const TrainOptions& options, std::uint64_t chunk_bytes) {
  std::vector<Remedy> out;
  const auto add = [&](std::string flag, const auto& change) {
    out.push_back({std::move(flag), options, chunk_bytes});
    change(out.back());
  };
  const StepShape& shape = options.shape;
  if (!options.resume && chunk_bytes / 2 >= kTile * size_of(options.dtype))
    add(fmt::format("--chunk-size {}", flag_size(chunk_bytes / 2)), [](Remedy& r) { r.chunk_bytes /= 2; });
  if (shape.recompute == Recompute::none)
    add("--recompute layer", [](Remedy& r) { r.options.shape.recompute = Recompute::layer; });
  if (shape.batch > 1)
    add(fmt::format("--batch-size 1 --accumulate {}", shape.accumulate * shape.batch), [](Remedy& r) {
      r.options.shape.accumulate *= r.options.shape.batch;
      r.options.shape.batch = 1;
    });
  if (shape.length > 1)
    add(fmt::format("--sequence-length {}", shape.length / 2), [](Remedy& r) { r.options.shape.length /= 2; });
  return out;
}

std::string would_fit(const TrainOptions& options, const ModelConfig& config, std::uint64_t chunk_bytes,
                      Accelerator* accelerator) {
  std::string text;
  for (const Remedy& remedy : remedies(options, chunk_bytes)) {
    const StepCode code = make_step_code(config, remedy.options, remedy.chunk_bytes, accelerator);
    if (fits(needed(code, remedy.options, frame_bytes_for(remedy.chunk_bytes)), options))
      text += fmt::format(", or {}", remedy.flag);
  }
  if (options.nvme_capacity == 0) text += ", or a store (--nvme-capacity above 0)";
  return text;
}

[[noreturn]] void refuse_budget(const TrainOptions& options, const ModelConfig& config, const LeastBudget& least,
                                std::uint64_t chunk, Accelerator* accelerator) {
  const bool host = least.host_bytes > options.host_memory;
  const std::uint64_t need = host ? least.host_bytes : least.device_bytes;
  const std::uint64_t given = host ? options.host_memory : options.device_memory;
  const char* tier = host ? "host" : "device";
  const auto [need_text, given_text] = format_sizes(need, given);
  throw BudgetError(
      fmt::format("This run needs at least {} of {} memory (chunks of {}) and --{}-memory gives {}. It would fit with "
                  "--{}-memory {}{}.",
                  need_text, tier, format_size(chunk), tier, given_text, tier, flag_size(need),
                  would_fit(options, config, chunk, accelerator)),
      need, given);
}

/// What other programs, lazily loaded kernels and the kernels' own few arrays may still take of a GPU.
constexpr std::uint64_t kDeviceReserve = 512 * MiB;

void resolve_device_memory(TrainOptions& options, const AcceleratorFacts& gpu, std::vector<std::string>& notes) {
  const std::uint64_t reserve = std::min(kDeviceReserve, gpu.free_bytes / 4);
  const bool left_to_us = options.device_memory == 0;
  if (left_to_us) options.device_memory = gpu.free_bytes - reserve;
  if (options.device_memory > gpu.free_bytes) {
    const auto [given, free] = format_sizes(options.device_memory, gpu.free_bytes);
    throw BudgetError(fmt::format("--device-memory gives {}, but {} has {} free.", given, gpu.name, free),
                      options.device_memory, gpu.free_bytes);
  }
  notes.push_back(
      fmt::format("GPU: {}, {} free of {} ({} in use by its context, libraries and other programs). Device "
                  "memory: {}{}.",
                  gpu.name, format_size(gpu.free_bytes), format_size(gpu.total_bytes), format_size(gpu.taken_bytes),
                  format_size(options.device_memory),
                  left_to_us ? fmt::format(", after a reserve of {}", format_size(reserve)) : ""));
}

void note_memory(const TrainOptions& options, const Budgets& budgets, std::vector<std::string>& notes) {
  const MemoryLimit limit = memory_limit();
  const std::uint64_t wanted =
      options.ranks_here * (budgets.host_bytes + (options.device == DeviceKind::emulated ? budgets.device_bytes : 0));
  if (wanted > limit.available_bytes) {
    const auto [wanted_text, free_text] = format_sizes(wanted, limit.available_bytes);
    notes.push_back(fmt::format("The budgets{} take {}, more than the {} that the {} has free now.",
                                options.ranks_here > 1 ? fmt::format(" of {} ranks", options.ranks_here) : "",
                                wanted_text, free_text, limit.source));
  }
  if (budgets.host_bytes < options.host_memory / budgets.frame_bytes * budgets.frame_bytes)
    notes.push_back(fmt::format("This run uses {} of host memory; the rest of the budget is not taken.",
                                format_size(budgets.host_bytes)));
}

}  // namespace

/// Memory that the user left to us: what is really free less a reserve; a quarter of the host's for an emulated device.
void resolve_memory(TrainOptions& options, const Accelerator* accelerator, std::vector<std::string>& notes) {
  const MemoryLimit limit = memory_limit();
  const std::uint64_t left = (limit.available_bytes - limit.reserve_bytes) / options.ranks_here;
  if (options.host_memory == 0) {
    options.host_memory = left;
    if (options.device == DeviceKind::emulated)  // it lies in host memory too
      options.host_memory = options.device_memory == 0 ? left / 5 * 4 : left - std::min(left, options.device_memory);
    notes.push_back(fmt::format("Host memory: {}, of {} that the {} leaves free less a reserve of {}{}.",
                                format_size(options.host_memory), format_size(limit.available_bytes), limit.source,
                                format_size(limit.reserve_bytes),
                                options.ranks_here > 1 ? fmt::format(", for {} ranks", options.ranks_here) : ""));
  }
  if (accelerator != nullptr) resolve_device_memory(options, accelerator->facts(), notes);
  if (options.device == DeviceKind::emulated && options.device_memory == 0)
    options.device_memory = options.host_memory / 4;
}

PlanInput plan_input(const Prepared& prepared, const Trace& trace, const Rates& rates) {
  return {.trace = &trace,
          .blocks = &prepared.code.blocks,
          .budgets = prepared.plan.budgets,
          .rates = rates,
          .in_flight_bytes = {prepared.in_flight_bytes[0], prepared.in_flight_bytes[1]}};
}

namespace {

/// How many chunks of a size hold the model's weights, without laying them out.
std::uint64_t chunks_about(const ModelConfig& config, const TrainOptions& options, std::uint64_t chunk_bytes) {
  std::uint64_t elements = 0;  // at most 2^60, see Layout
  for (const ParamSpec& param : model_params(config, options.freeze))
    elements = std::min(kMostElements, elements + std::min(kMostElements, param.elements()));
  return ceil_div(elements * size_of(options.dtype), chunk_bytes);
}

/// Every chunk has an entry in plan, store and engine.
void check_chunks(const ModelConfig& config, const TrainOptions& options, std::uint64_t chunk_bytes) {
  const std::uint64_t largest = kMaxChunkBytes;
  if (chunks_about(config, options, largest) > kMostChunks)
    throw InputError(fmt::format("This model has more than {} of weights, the most that {} chunks of {} hold.",
                                 format_size(kMostChunks * largest), kMostChunks, format_size(largest)));
  const std::uint64_t chunks = chunk_bytes == 0 ? 0 : chunks_about(config, options, chunk_bytes);
  if (chunks <= kMostChunks) return;
  std::uint64_t enough = chunk_bytes;
  while (chunks_about(config, options, enough) > kMostChunks) enough *= 2;
  throw InputError(
      fmt::format("--chunk-size {} cuts this model into about {} chunks; at most {} are planned. Give at least "
                  "--chunk-size {}, or leave it out.",
                  format_size(chunk_bytes), chunks, kMostChunks, flag_size(enough)));
}

/// Step code and plan of one chunk size after the other; the last is kept.
class Candidates {
 public:
  Candidates(const TrainOptions& options, const ModelConfig& config, Accelerator* accelerator)
      : options_(options), config_(config), accelerator_(accelerator) {}

  /// The least host budget; more than there is where the device's is too small.
  std::uint64_t least(std::uint64_t chunk) {
    if (chunks_about(config_, options_, chunk) > kMostChunks) return UINT64_MAX;
    code_ = make_step_code(config_, options_, chunk, accelerator_);
    least_ = needed(code_, options_, frame_bytes_for(chunk));
    if (least_.host_bytes + least_.device_bytes < smallest_.host_bytes + smallest_.device_bytes) {
      smallest_ = least_;
      smallest_chunk_ = chunk;
    }
    return fits(least_, options_) ? least_.host_bytes : UINT64_MAX;
  }
  Prepared& plan(std::uint64_t chunk) {
    if (!prepared_ || prepared_->plan.chunk_size != chunk) {
      if (!code_.layout || code_.layout->chunk_bytes() != chunk) least(chunk);
      prepared_ = plan_for(std::move(code_), least_, options_, config_);
      code_ = {};
    }
    return *prepared_;
  }
  const LeastBudget& smallest() const { return smallest_; }
  std::uint64_t smallest_chunk() const { return smallest_chunk_; }

 private:
  const TrainOptions& options_;
  const ModelConfig& config_;
  Accelerator* accelerator_;
  StepCode code_;
  LeastBudget least_, smallest_{.device_bytes = UINT64_MAX / 2, .host_bytes = UINT64_MAX / 2};
  std::uint64_t smallest_chunk_ = 0;
  std::optional<Prepared> prepared_;
};

/// 0: none fits.
std::uint64_t choose_chunk(Candidates& candidates, const TrainOptions& options, const ModelConfig& config) {
  const std::vector<ParamSpec> params = model_params(config, options.freeze);
  const std::vector<PlaneSpec> planes = planes_for(config, options);
  const ChunkSearch search{.params = &params,
                           .planes = &planes,
                           .host_bytes = options.host_memory,
                           .least_host_bytes = [&](std::uint64_t chunk) { return candidates.least(chunk); },
                           .cost = [&](std::uint64_t chunk) { return cost_of(candidates.plan(chunk)); },
                           .max_blocks = kManyBlocks};
  try {
    return search_chunk_size(search).chunk_bytes;
  } catch (const BudgetError&) {
    return 0;
  }
}

}  // namespace

bool fits_budgets(const TrainOptions& options, const ModelConfig& config, std::uint64_t chunk_bytes) {
  if (chunks_about(config, options, chunk_bytes) > kMostChunks) return false;
  const StepCode code = make_step_code(config, options, chunk_bytes, nullptr);
  if (!fits(needed(code, options, frame_bytes_for(chunk_bytes)), options)) return false;
  return options.nvme_capacity == 0 || store_bytes(slot_classes(code, options)) <= options.nvme_capacity;
}

Prepared prepare(TrainOptions& options, const ModelConfig& config, std::uint64_t fixed_chunk_bytes,
                 Accelerator* accelerator) {
  check_chunks(config, options, fixed_chunk_bytes);
  Candidates candidates(options, config, accelerator);
  std::uint64_t chunk = fixed_chunk_bytes;
  if (chunk == 0) chunk = choose_chunk(candidates, options, config);
  if (chunk == 0 || (fixed_chunk_bytes != 0 && candidates.least(chunk) > options.host_memory))
    refuse_budget(options, config, candidates.smallest(), candidates.smallest_chunk(), accelerator);
  Prepared prepared = std::move(candidates.plan(chunk));
  options.chunk_size = chunk;
  prepared.plan.notes = config.notes;
  note_memory(options, prepared.plan.budgets, prepared.plan.notes);
  return prepared;
}

std::optional<Prepared> prepare_changed(const TrainOptions& options, const ModelConfig& config,
                                        std::uint64_t chunk_bytes, Accelerator* accelerator) {
  StepCode code = make_step_code(config, options, chunk_bytes, accelerator);
  const LeastBudget least = needed(code, options, frame_bytes_for(chunk_bytes));
  if (!fits(least, options)) return std::nullopt;
  return plan_for(std::move(code), least, options, config);
}

}  // namespace transload
