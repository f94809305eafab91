#include "train/session.h"

#include <fmt/format.h>

#include "base/size.h"
#include "train/initial_state.h"
#include "train/rates.h"
#include "train/reshard.h"
#include "train/run_folder.h"

namespace transload {

namespace {

constexpr std::size_t kMostEvents = 1 << 18;  // of one step, in the record

EngineOptions engine_options(const TrainOptions& options, const Budgets& budgets, Device* device, Timeline* timeline) {
  return {.device_bytes = budgets.device_bytes,
          .host_bytes = budgets.host_bytes,
          .frame_bytes = budgets.frame_bytes,
          .device = device,
          .lru = options.lru,
          .timeline = timeline};
}

}  // namespace

Session::Session(const TrainOptions& options, const Prepared& prepared, const Inputs& inputs,
                 const std::optional<ResumePoint>& resume, RunStores* stores, Accelerator* accelerator,
                 Communicator& communicator, const Observer& observer)
    : options_(options),
      prepared_(prepared),
      inputs_(inputs),
      timeline_(Timeline::room_for(prepared.code.step.accesses.size())),
      stores_(stores),
      accelerator_(accelerator),
      communicator_(communicator) {
  if (stores_ != nullptr) open_store(resume.has_value(), observer);
  const Budgets& budgets = prepared.plan.budgets;
  measure_links();
  engine_ = std::make_unique<Engine>(prepared.code.blocks, engine_options(options, budgets, make_device(), noted()),
                                     store_.get());
  note_host_memory(observer);
  const std::size_t accesses = options.record_events ? 2 * prepared.code.step.accesses.size() : 0;
  access_ = std::make_unique<RecordingAccess>(*engine_, std::min(kMostEvents, accesses));
  make_streams();
  optimizer_ = std::make_unique<Optimizer>(
      *prepared.code.layout, *access_, *compute_, *host_,
      Optimizer::Options{
          .clip_norm = options.clip_norm,
          .compute_tier = compute_tier(options),
          .gradients = accelerator_ == nullptr ? nullptr : accelerator_->make_gradient_kernels(),
          .update_tiers = prepared.code.update_tiers,
          .updates = accelerator_ == nullptr ? nullptr : accelerator_->make_update_kernels(),
          .exchange = {.communicator = &communicator_,
                       .stream = comm_.get(),
                       .tier = options.comm_tier,
                       .step = &step_,
                       .plans = prepared.code.gathers},
          .sums = options.comm_tier == Tier::host ? nullptr : accelerator_->make_gradient_kernels(*comm_inner_)},
      prepared.code.transformer->contributions());
  begin_state(resume, observer);
}

void Session::note_host_memory(const Observer& observer) const {
  if (accelerator_ == nullptr || !observer.say) return;
  const HostMemoryFacts host = accelerator_->host_memory();
  for (const std::string* reason : {&host.unpinned_reason, &host.unbound_reason})
    if (!reason->empty())
      observer.say(fmt::format("Copies to and from the GPU are slower than they could be: {}.", *reason));
}

// Work in flight reads the optimizer and what it was given; after an exception nobody else has waited for it.
Session::~Session() {
  for (BusyStream* stream : {comm_.get(), compute_.get(), host_.get()}) {
    try {
      if (stream != nullptr) stream->synchronize();
    } catch (const std::exception&) {
      // The first error is on its way to the user already.
    }
  }
}

Device* Session::make_device() {
  if (accelerator_ != nullptr) return &accelerator_->device();
  if (options_.device == DeviceKind::emulated) emulated_ = make_emulated_device(options_.link_rate);
  return emulated_.get();
}

void Session::measure_links() {
  const Budgets& budgets = prepared_.plan.budgets;
  rates_ = measure_rates(store_.get(), prepared_.slots, budgets.host_bytes / 2, options_.link_rate);
  if (accelerator_ != nullptr) measure_device(accelerator_->device(), budgets.device_bytes, rates_);
}

void Session::open_store(bool resumed, const Observer& observer) {
  StoreOptions store{.io = options_.io, .durable = options_.durable, .capacity_bytes = options_.nvme_capacity};
  const auto progress = [&](std::uint64_t done, std::uint64_t total) {
    if (observer.progress) observer.progress("Writing the store's files through once", done, total);
  };
  const Shards& shards = options_.shards;
  const bool goes_on = resumed && stores_->fits(*prepared_.code.layout);
  run_id_ = stores_->agree_on_run_id();
  group_ = goes_on ? stores_->current()->group : stores_->next_group();
  commits_.emplace(options_.run, run_id_, group_, stores_->peers());
  if (goes_on) {
    store.folder = stores_->place(shards.rank);
    store.wanted = stores_->wanted(shards.rank);
    store_ = Store::open(store, prepared_.slots, progress);
    return;
  }
  if (resumed) old_group_ = open_group(*stores_);
  store.folder = stores_->make_place(shards.rank, shards.count);
  store_ = Store::create(store, prepared_.slots, progress);
}

void Session::make_streams() {
  const auto make = [&]() -> std::unique_ptr<Stream> {
    if (options_.device == DeviceKind::cpu) return std::make_unique<InlineStream>();
    return std::make_unique<QueueStream>();
  };
  compute_inner_ = accelerator_ != nullptr ? accelerator_->make_compute_stream() : make();
  host_inner_ = make();
  compute_ = std::make_unique<BusyStream>(*compute_inner_, Lane::compute, noted());
  host_ = std::make_unique<BusyStream>(*host_inner_, Lane::host, noted());
  // One rank has no collectives; several run them beside computation.
  if (communicator_.size() == 1) comm_inner_ = std::make_unique<InlineStream>();
  if (communicator_.size() > 1)
    comm_inner_ =
        options_.comm_tier == Tier::device ? accelerator_->make_comm_stream() : std::make_unique<QueueStream>();
  comm_ = std::make_unique<BusyStream>(*comm_inner_, Lane::comm, noted());
}

void Session::begin_state(const std::optional<ResumePoint>& resume, const Observer& observer) {
  if (resume) return go_on(*resume, observer);
  if (observer.say) observer.say("Writing the first weights.");
  write_initial_weights(*prepared_.code.layout, *engine_, *host_, inputs_.weights.get());
  host_->synchronize();
  declare_zero_moments(*prepared_.code.layout, *engine_);
  commit({});
}

void Session::go_on(const ResumePoint& resume, const Observer& observer) {
  const Layout& layout = *prepared_.code.layout;
  optimizer_->set_step_counts(resume.meta.step_counts);
  if (old_group_.stores.empty()) {
    engine_->adopt(stored_blocks(store_->committed(), layout, prepared_.code.blocks.size()));
    return;
  }
  reshard(old_group_.view, layout, *engine_, *host_, [&](std::uint64_t done, std::uint64_t total) {
    if (observer.progress) observer.progress("Copying the state to new stores", done, total);
  });
  host_->synchronize();
  commit({.step = resume.meta.step,
          .steps_seen = resume.meta.steps_seen,
          .samples_seen = resume.meta.samples_seen,
          .skipped_in_a_row = resume.meta.skipped_in_a_row});
  old_group_.close();
  stores_->remove_current();
}

Runtime Session::runtime() {
  return {.blocks = access_.get(), .compute = compute_.get(), .compute_tier = compute_tier(options_)};
}

std::optional<Store::Facts> Session::store_facts() const {
  if (!store_) return std::nullopt;
  return store_->facts();
}

std::string Session::metadata(const Position& position) const {
  CheckpointMeta meta;
  meta.step = position.step;
  meta.steps_seen = position.steps_seen;
  meta.samples_seen = position.samples_seen;
  meta.seed = options_.seed;
  meta.skipped_in_a_row = position.skipped_in_a_row;
  meta.model_json = to_hf_config(inputs_.config, options_.dtype);
  meta.dtype = options_.dtype;
  meta.gradients = options_.gradients;
  meta.layout_json = prepared_.code.layout->to_json();
  meta.model_identity = inputs_.weights->identity();
  meta.data_identity = inputs_.data->identity();
  meta.hyper_json = hyper_json(options_);
  meta.step_counts = optimizer_->step_counts();
  meta.run_id = run_id_;
  meta.group = group_;
  meta.tokenizer = inputs_.data->is_text() ? "bytes" : "ids";
  return to_json(meta);
}

void Session::commit(const Position& position) {
  if (!store_) return;
  optimizer_->flush_to_host();
  compute_->synchronize();
  host_->synchronize();
  engine_->commit(metadata(position), commits_->of(*store_, position.step));
}

void Session::export_to(const std::string& folder, const Progress& progress) {
  export_group(GroupView::of_ranks(*store_, stores_->peers(), options_.run), folder, {}, progress);
}

void Session::close() {
  if (store_) store_->close();
}

}  // namespace transload
