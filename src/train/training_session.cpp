// TrainingSession: the public API over layout, engine, optimizer and store (include/transload/transload.h).
//
// Memory: one workspace for weights that must be copied to be in one piece, the rest of the arena for blocks. Weights
// are pinned in place only while the blocks of one update still find room beside them (held_in_place), so that the
// optimizer never waits for the caller.
// Planning: the first step makes no updates; the second is recorded and planned, later ones follow the plan. A loop
// that changes costs time, never a wrong number.
#include <fmt/format.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/size.h"
#include "engine/engine.h"
#include "optim/optimizer.h"
#include "plan/planner.h"
#include "train/checkpoint.h"
#include "train/recording_access.h"
#include "train/workspace_pool.h"
#include "transload/transload.h"

namespace transload {
namespace {

/// Room for transfers on their way: one a link and direction beside the plan's.
constexpr std::uint64_t kTransfers = 4;
/// The first step has no updates yet; the second is what all later ones look like.
constexpr std::uint64_t kRecordedStep = 1;

std::vector<ParamSpec> specs_of(const std::vector<Parameter>& parameters) {
  std::vector<ParamSpec> specs;
  for (const Parameter& p : parameters) specs.push_back({.name = p.name, .shape = p.shape, .frozen = p.frozen});
  return specs;
}

bool sums_uses(const std::vector<Parameter>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(), [](const Parameter& p) { return !p.frozen && p.uses > 1; });
}

Layout make_layout(const std::vector<Parameter>& parameters, const TrainingSessionOptions& options) {
  const Dtype dtype = options.precision == Precision::bf16 ? Dtype::bf16 : Dtype::f32;
  return Layout(specs_of(parameters), training_planes(dtype, dtype, dtype == Dtype::bf16 && sums_uses(parameters)),
                options.chunk_size);
}

/// Two slots for a block that changes between commits, one for others, and a few for writes on their way.
std::vector<SlotClass> slot_classes(const Layout& layout) {
  std::map<std::uint64_t, std::uint64_t> counts;
  for (std::size_t b = 0; b < layout.blocks().size(); ++b) {
    const BlockSpec& block = layout.blocks()[b];
    const bool frozen = layout.chunk(layout.chunk_of(BlockId(b))).frozen;
    counts[block.bytes] += block.durable && !frozen ? 2 : 1;
  }
  std::vector<SlotClass> classes;
  for (const auto& [bytes, count] : counts) classes.push_back({.bytes = bytes, .count = count + kTransfers});
  return classes;
}

/// Most bytes that one update pins: all planes of one chunk, in whole frames.
std::uint64_t update_bytes(const Layout& layout, std::uint64_t frame_bytes) {
  std::vector<std::uint64_t> by_chunk(layout.chunks().size());
  for (std::size_t b = 0; b < layout.blocks().size(); ++b)
    by_chunk[layout.chunk_of(BlockId(b)).value] += round_up(layout.blocks()[b].bytes, frame_bytes);
  return by_chunk.empty() ? 0 : *std::max_element(by_chunk.begin(), by_chunk.end());
}

std::uint64_t largest_block(const Layout& layout, std::uint64_t frame_bytes) {
  std::uint64_t most = 0;
  for (const BlockSpec& block : layout.blocks()) most = std::max(most, round_up(block.bytes, frame_bytes));
  return most;
}

std::uint64_t default_workspace(const Layout& layout) {
  std::uint64_t most = 0;
  for (const ParamSpec& p : layout.params()) most = std::max(most, p.elements() * size_of(layout.weight_dtype()));
  return round_up(most, 64);
}

}  // namespace

struct TrainingSession::Impl {
  Impl(std::vector<Parameter> parameters_in, const TrainingSessionOptions& options_in, const Initializer& initializer);
  ~Impl();

  void check_budget() const;
  void open_store(const Initializer& initializer);
  void adopt(const CheckpointMeta& meta);
  void initialize(const Initializer& initializer);
  void initialize_chunk(ChunkId chunk, const Initializer& initializer);
  void check_range(std::size_t parameter, std::uint64_t first, std::uint64_t count) const;
  void check_nothing_held() const;
  void check_step_complete() const;
  void check_between_steps() const;
  void begin_step_if_needed();
  void plan_recorded_step();
  std::string metadata(const std::string& text) const;

  std::vector<Parameter> parameters;
  TrainingSessionOptions options;
  std::optional<tbb::global_control> thread_limit;
  Layout layout;
  std::uint64_t frame_bytes, workspace_bytes, update_room;
  std::unique_ptr<Store> store;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<RecordingAccess> access;
  std::unique_ptr<Optimizer> optimizer;
  InlineStream stream;
  WorkspacePool workspace;

  std::vector<std::uint32_t> rounds;   ///< contributions complete in this step, by parameter
  std::vector<std::uint64_t> covered;  ///< elements of the one under way
  std::uint64_t steps = 0;
  std::uint64_t steps_here = 0;     ///< since the session was opened
  std::uint64_t held_in_place = 0;  ///< bytes of blocks that Weights pin
  int held = 0;                     ///< living Weights
  bool planned = false, in_step = false;
  std::string note;
};

/// What a living Weights keeps: a pinned block, or a piece of the workspace.
struct Weights::Hold {
  TrainingSession::Impl* session = nullptr;
  Pin pin;
  std::uint64_t pinned_bytes = 0;
  std::byte* copy = nullptr;
  const void* data = nullptr;
  ~Hold() {
    if (pin.held()) session->access->unpin(std::move(pin), session->stream);
    if (copy != nullptr) session->workspace.give_back(copy);
    session->held_in_place -= pinned_bytes;
    --session->held;
  }
};

TrainingSession::Impl::Impl(std::vector<Parameter> parameters_in, const TrainingSessionOptions& options_in,
                            const Initializer& initializer)
    : parameters(std::move(parameters_in)),
      options(options_in),
      layout(make_layout(parameters, options)),
      frame_bytes(frame_bytes_for(layout.chunk_bytes())),
      workspace_bytes(options.workspace > 0 ? options.workspace : default_workspace(layout)),
      update_room(update_bytes(layout, frame_bytes) + kTransfers * largest_block(layout, frame_bytes)),
      rounds(parameters.size()),
      covered(parameters.size()) {
  if (options.threads > 0)
    thread_limit.emplace(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(options.threads));
  check_budget();
  open_store(initializer);
}

TrainingSession::Impl::~Impl() {
  // The optimizer's pending updates are not applied: what was not committed is lost, by contract.
  optimizer.reset();
  access.reset();
  engine.reset();
  if (store != nullptr) store->close();
}

void TrainingSession::Impl::check_budget() const {
  const std::uint64_t needed = round_up(workspace_bytes, frame_bytes) + update_room;
  if (options.host_memory >= needed) return;
  const auto [given_text, needed_text] = format_sizes(options.host_memory, needed);
  throw BudgetError(
      fmt::format("host_memory is {}, but this network needs at least {}: {} of workspace for one parameter in one "
                  "piece and {} for the update of one chunk. Give more, or choose a smaller chunk_size (now {}) or "
                  "workspace.",
                  given_text, needed_text, format_size(workspace_bytes), format_size(update_room),
                  format_size(layout.chunk_bytes())),
      needed, options.host_memory);
}

void TrainingSession::Impl::open_store(const Initializer& initializer) {
  namespace fs = std::filesystem;
  const std::string folder = (fs::path(options.folder) / "store").string();
  const auto quiet = [](std::uint64_t, std::uint64_t) {};
  fs::create_directories(options.folder);
  const bool resumes = Store::exists(folder);
  const StoreOptions store_options{.folder = folder};
  store = resumes ? Store::open(store_options, slot_classes(layout), quiet)
                  : Store::create(store_options, slot_classes(layout), quiet);
  EngineOptions engine_options;
  engine_options.host_bytes = options.host_memory;
  engine_options.frame_bytes = frame_bytes;
  engine = std::make_unique<Engine>(layout.blocks(), engine_options, store.get());
  access = std::make_unique<RecordingAccess>(*engine, 0);
  workspace = WorkspacePool(engine->workspace(Tier::host, workspace_bytes), workspace_bytes);

  std::vector<std::uint32_t> contributions;
  for (const Parameter& p : parameters) contributions.push_back(p.frozen ? 0 : p.uses);
  Optimizer::Options how;
  how.clip_norm = options.clip_norm;
  optimizer = std::make_unique<Optimizer>(layout, *access, stream, stream, how, contributions);
  if (resumes)
    adopt(parse_meta(store->committed().metadata, folder));
  else
    initialize(initializer);
}

void TrainingSession::Impl::adopt(const CheckpointMeta& meta) {
  if (meta.layout_json != layout.to_json())
    throw InputError(
        fmt::format("{} holds other parameters, another precision or another chunk size than this session "
                    "declares. Declare the same, or use another folder.",
                    options.folder));
  engine->adopt(store->committed().blocks);
  optimizer->set_step_counts(meta.step_counts);
  steps = meta.step;
  note = nlohmann::json::parse(meta.hyper_json).value("note", "");
}

void TrainingSession::Impl::initialize(const Initializer& initializer) {
  for (std::size_t c = 0; c < layout.chunks().size(); ++c) initialize_chunk(ChunkId(c), initializer);
  for (std::size_t b = 0; b < layout.blocks().size(); ++b) {
    const std::string& plane = layout.blocks()[b].plane;
    if (plane == "moment1" || plane == "moment2") engine->set_zero(BlockId(b));
  }
}

void TrainingSession::Impl::initialize_chunk(ChunkId chunk, const Initializer& initializer) {
  const BlockId weight_id = layout.block(chunk, layout.plane("weight"));
  const BlockId residue_id = layout.block(chunk, layout.plane("residue"));
  Pin weight = engine->pin(weight_id, Tier::host, AccessKind::write);
  weight.view.zero(0, weight.view.bytes());
  Pin residue;
  if (residue_id.valid()) {
    residue = engine->pin(residue_id, Tier::host, AccessKind::write);
    residue.view.zero(0, residue.view.bytes());
  }
  std::vector<float> values(kTile);
  for (const Piece& piece : layout.chunk(chunk).pieces)
    for (std::uint64_t done = 0; done < piece.count; done += kTile) {
      const std::uint64_t n = std::min(kTile, piece.count - done);
      initializer(piece.param.value, piece.param_begin + done, n, values.data());
      const std::uint64_t at = piece.chunk_begin + done;
      if (layout.weight_dtype() == Dtype::f32) {
        weight.view.copy_in(values.data(), at * 4, (at + n) * 4);
        continue;
      }
      for (std::uint64_t i = 0; i < n; ++i) {
        const SplitMaster split = split_master(values[i]);
        weight.view.copy_in(&split.weight, (at + i) * 2, (at + i + 1) * 2);
        if (residue.held()) residue.view.copy_in(&split.residue, (at + i) * 2, (at + i + 1) * 2);
      }
    }
  engine->unpin(std::move(weight), stream);
  if (residue.held()) engine->unpin(std::move(residue), stream);
}

void TrainingSession::Impl::check_range(std::size_t parameter, std::uint64_t first, std::uint64_t count) const {
  if (parameter >= parameters.size())
    throw InputError(fmt::format("There is no parameter {}: {} are declared.", parameter, parameters.size()));
  const std::uint64_t elements = layout.param(ParamId(parameter)).elements();
  if (first > elements || count > elements - first)
    throw InputError(fmt::format("{} has {} elements; [{}, {}) is not among them.", parameters[parameter].name,
                                 elements, first, first + count));
}

void TrainingSession::Impl::check_nothing_held() const {
  if (held > 0) throw InputError(fmt::format("{} Weights are still held; let go of them before step or commit.", held));
}

/// Pinning is harmless; a gradient that was begun would be lost.
void TrainingSession::Impl::check_between_steps() const {
  check_nothing_held();
  for (std::size_t p = 0; p < parameters.size(); ++p)
    if (rounds[p] > 0 || covered[p] > 0)
      throw InputError(fmt::format("{} has a gradient of a step under way; commit after step().", parameters[p].name));
}

void TrainingSession::Impl::check_step_complete() const {
  check_nothing_held();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const Parameter& parameter = parameters[p];
    if (!parameter.frozen && layout.param(ParamId(p)).elements() > 0 && rounds[p] != parameter.uses)
      throw InputError(
          fmt::format("{} got {} of {} contributions in this step.", parameter.name, rounds[p], parameter.uses));
  }
}

void TrainingSession::Impl::begin_step_if_needed() {
  if (in_step) return;
  in_step = true;
  if (planned) engine->begin_step();
  if (planned || steps_here != kRecordedStep) return;
  access->begin_step(true);
  access->workspace(Tier::host, workspace_bytes);
}

void TrainingSession::Impl::plan_recorded_step() {
  const Trace trace = access->take_trace();
  PlanInput input;
  input.trace = &trace;
  input.blocks = &layout.blocks();
  input.budgets.host_bytes = options.host_memory;
  input.budgets.nvme_bytes = UINT64_MAX;
  input.budgets.frame_bytes = frame_bytes;
  input.in_flight_bytes[0] = input.in_flight_bytes[1] = kTransfers * largest_block(layout, frame_bytes);
  engine->set_plan(trace, make_plan(input));
  planned = true;
}

std::string TrainingSession::Impl::metadata(const std::string& text) const {
  CheckpointMeta meta;
  meta.step = meta.steps_seen = steps;
  meta.model_json = "{}";
  meta.dtype = meta.gradients = layout.weight_dtype();
  meta.layout_json = layout.to_json();
  meta.hyper_json = nlohmann::json{{"note", text}}.dump();
  meta.step_counts = optimizer->step_counts();
  return to_json(meta);
}

TrainingSession::TrainingSession(std::vector<Parameter> parameters, const TrainingSessionOptions& options,
                                 const Initializer& initializer)
    : impl_(std::make_unique<Impl>(std::move(parameters), options, initializer)) {}
TrainingSession::~TrainingSession() = default;

std::uint64_t TrainingSession::steps() const { return impl_->steps; }
const std::string& TrainingSession::note() const { return impl_->note; }

Weights TrainingSession::pin(std::size_t parameter) {
  impl_->check_range(parameter, 0, 0);
  return pin(parameter, 0, impl_->layout.param(ParamId(parameter)).elements());
}

Weights TrainingSession::pin(std::size_t parameter, std::uint64_t first, std::uint64_t count) {
  Impl& s = *impl_;
  s.check_range(parameter, first, count);
  s.begin_step_if_needed();
  auto hold = std::make_unique<Weights::Hold>();
  hold->session = &s;
  ++s.held;
  const std::uint64_t size = size_of(s.layout.weight_dtype());
  for (const Piece& piece : s.layout.pieces(ParamId(parameter))) {
    const std::uint64_t from = std::max(first, piece.param_begin);
    const std::uint64_t to = std::min(first + count, piece.param_begin + piece.count);
    if (from >= to) continue;
    Pin pin = s.optimizer->use_weights(piece.chunk);
    pin.ready.wait();
    s.access->rethrow_if_failed();
    const std::uint64_t at = (piece.chunk_begin + from - piece.param_begin) * size;
    const std::uint64_t bytes = (to - from) * size;
    const std::uint64_t pinned = round_up(pin.view.bytes(), s.frame_bytes);
    const std::byte* in_place = to - from == count ? pin.view.contiguous(at, at + bytes) : nullptr;
    const std::uint64_t room = s.options.host_memory - round_up(s.workspace_bytes, s.frame_bytes) - s.update_room;
    if (in_place != nullptr && s.held_in_place + pinned <= room) {
      hold->data = in_place;
      hold->pin = std::move(pin);
      hold->pinned_bytes = pinned;
      s.held_in_place += pinned;
      break;
    }
    if (hold->copy == nullptr) hold->data = hold->copy = s.workspace.take(count * size);
    if (hold->copy != nullptr) pin.view.copy_out(hold->copy + (from - first) * size, at, at + bytes);
    s.access->unpin(std::move(pin), s.stream);
    if (hold->copy == nullptr)
      throw BudgetError(fmt::format("{} of {} do not fit in the workspace: {} of {} are free in one piece. Hold fewer "
                                    "weights at once, or give the session more workspace.",
                                    format_size(count * size), s.parameters[parameter].name,
                                    format_size(s.workspace.largest_free()), format_size(s.workspace_bytes)),
                        count * size, s.workspace.largest_free());
  }
  return Weights(std::move(hold));
}

void TrainingSession::contribute(std::size_t parameter, std::uint64_t first, std::uint64_t count,
                                 const float* gradient) {
  Impl& s = *impl_;
  s.check_range(parameter, first, count);
  const Parameter& p = s.parameters[parameter];
  if (p.frozen) throw InputError(fmt::format("{} is frozen and takes no gradient.", p.name));
  if (s.rounds[parameter] == p.uses || first != s.covered[parameter])
    throw InputError(fmt::format("{}: contribution {} of {} goes on at element {}, not at {}.", p.name,
                                 s.rounds[parameter] + 1, p.uses, s.covered[parameter], first));
  s.begin_step_if_needed();
  s.optimizer->contribute(ParamId(parameter), first, count, gradient);
  s.covered[parameter] += count;
  if (s.covered[parameter] == s.layout.param(ParamId(parameter)).elements()) {
    s.covered[parameter] = 0;
    ++s.rounds[parameter];
  }
}

StepOutcome TrainingSession::step(const AdamW& hyper) {
  Impl& s = *impl_;
  s.check_step_complete();
  const Verdict verdict = s.optimizer->finish_backward();
  std::vector<ParamHyper> hypers;
  for (const ParamSpec& p : s.layout.params()) {
    ParamHyper h;
    h.adamw = {.lr = hyper.learning_rate,
               .beta1 = hyper.beta1,
               .beta2 = hyper.beta2,
               .epsilon = hyper.epsilon,
               .weight_decay = p.shape.size() >= 2 ? hyper.weight_decay : 0};
    hypers.push_back(h);
  }
  s.optimizer->step(verdict, hypers);
  if (s.planned) s.engine->end_step();
  if (!s.planned && s.steps_here == kRecordedStep) s.plan_recorded_step();
  s.in_step = false;
  ++s.steps_here;
  if (verdict.finite) ++s.steps;
  std::fill(s.rounds.begin(), s.rounds.end(), 0);
  return {.applied = verdict.finite, .gradient_norm = verdict.norm};
}

void TrainingSession::commit(const std::string& note) {
  Impl& s = *impl_;
  s.check_between_steps();
  s.optimizer->flush();
  s.engine->commit(s.metadata(note));
  s.note = note;
}

MemoryUse TrainingSession::memory_use() const {
  const EngineCounters counters = impl_->engine->counters();
  return {.host_budget = impl_->options.host_memory,
          .host_peak = counters.peak_bytes[static_cast<int>(Tier::host)],
          .nvme_read = counters.link[static_cast<int>(Link::nvme_read)].bytes,
          .nvme_written = counters.link[static_cast<int>(Link::nvme_write)].bytes};
}

Weights::Weights(std::unique_ptr<Hold> hold) : hold_(std::move(hold)), data_(hold_->data) {}
Weights::Weights(Weights&&) noexcept = default;
Weights::~Weights() = default;

}  // namespace transload
