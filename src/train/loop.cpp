#include "train/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <span>
#include <type_traits>

#include "base/error.h"
#include "base/size.h"
#include "train/outlook.h"
#include "train/run_header.h"

namespace transload {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMostSkippedInARow = 10;
constexpr int kDeviatingStepsBeforeRenewal = 3;
constexpr std::size_t kStepsBeforeOutlook = 8;  // steady ones: a run that is killed later has one in its record
constexpr std::uint64_t kMostEvaluationBatches = 16;
constexpr const char* kExportPrefix = "export-";
constexpr const char* kUnfinished = ".tmp";

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

double learning_rate(const TrainOptions& options, std::uint64_t steps_seen) {
  if (steps_seen < options.warmup_steps)
    return options.learning_rate * static_cast<double>(steps_seen + 1) / static_cast<double>(options.warmup_steps);
  if (options.schedule == Schedule::constant || options.steps <= options.warmup_steps) return options.learning_rate;
  const double part = std::min(1.0, static_cast<double>(steps_seen - options.warmup_steps) /
                                        static_cast<double>(options.steps - options.warmup_steps));
  const double left = options.schedule == Schedule::linear ? 1 - part : 0.5 * (1 + std::cos(std::numbers::pi * part));
  return options.min_learning_rate + (options.learning_rate - options.min_learning_rate) * left;
}

Loop::Loop(const TrainOptions& options, Prepared& prepared, const Inputs& inputs, const RunFolder& folder,
           Session& session, const Observer& observer, Position start)
    : options_(options),
      prepared_(prepared),
      inputs_(inputs),
      folder_(folder),
      session_(session),
      observer_(observer),
      position_(start),
      record_(folder.path() + "/" + name_for(options.shards, "record.jsonl"), {}),
      summary_(options, prepared, session.rates(), start.steps_seen + 1),
      committed_steps_(start.steps_seen),
      last_commit_(Clock::now()),
      batches_(static_cast<std::size_t>(options.shape.accumulate)),
      evaluation_batches_(1) {
  const StepCode& code = prepared.code;
  if (!options.lru) {
    plans_[0] = {code.step, prepared.plan.plan};
    const Trace* others[] = {&code.fresh_step, &code.evaluation};
    for (std::size_t i = 0; i < 2; ++i)
      plans_[i + 1] = {*others[i], make_plan(plan_input(prepared, *others[i], session.rates()))};
  }
  if (options.shards.rank == 0) remove_torn_exports();
  record_.write("run", run_header(options, prepared, session.rates(), session.store_facts(), session.accelerator(),
                                  start.steps_seen));
  for (const std::string& text : prepared.plan.notes) note(text);
}

void Loop::note(const std::string& text) { record_.write("note", "\"text\":" + json_string(text)); }

void Loop::say(const std::string& text) {
  note(text);
  if (observer_.say) observer_.say(text);
}

std::uint64_t Loop::samples_a_step() const { return static_cast<std::uint64_t>(options_.shape.samples_a_step()); }

std::vector<ParamHyper> Loop::hyper(double lr) const {
  std::vector<ParamHyper> out;
  for (const ParamSpec& param : prepared_.code.layout->params())
    out.push_back({.adamw = {.lr = lr,
                             .beta1 = options_.beta1,
                             .beta2 = options_.beta2,
                             .epsilon = options_.epsilon,
                             .weight_decay = param.shape.size() >= 2 ? options_.weight_decay : 0},
                   .present = !param.frozen});
  return out;
}

void Loop::set_plan(Pass pass) {
  const PassPlan& plan = plans_[static_cast<std::size_t>(pass)];
  session_.engine().set_plan(plan.trace, plan.plan);
  plan_in_use_ = static_cast<int>(pass);
}

void Loop::use_plan(Pass pass) {
  if (cycle_expects_ == pass) return;
  cycle_expects_.reset();
  if (plan_in_use_ != static_cast<int>(pass)) set_plan(pass);
  session_.engine().begin_step();
}

void Loop::end_plan() {
  if (cycle_expects_ == Pass::fresh_step) {
    cycle_expects_ = Pass::step;
    return;
  }
  if (cycle_expects_ == Pass::step)
    set_plan(Pass::step);
  else
    session_.engine().end_step();
  cycle_expects_.reset();
}

/// A commit right after a step: its updates, the step that then has none to apply and the one after that.
void Loop::begin_commit_cycle() {
  cycle_expects_.reset();
  const CommitCycle& cycle = prepared_.cycle;
  if (!pending_ || !cycle.planned() || options_.lru) return;
  session_.engine().set_plan(cycle.trace, cycle.plan);
  session_.engine().begin_step();
  plan_in_use_ = -1;
  cycle_expects_ = Pass::fresh_step;
}

Verdict Loop::train_pass(Pass pass, double& loss, double lr) {
  const SampleRun mine = samples_of(samples_a_step(), options_.shards.rank, options_.shards.count);
  read_batches(*inputs_.data, *inputs_.order, position_.samples_seen + mine.first, mine.count, options_.shape,
               batches_);
  session_.access().begin_step(tracing_, session_.timeline().begin_ns());
  if (!options_.lru) use_plan(pass);
  loss = prepared_.code.transformer->forward_backward(session_.runtime(), session_.optimizer(), batches_);
  const Verdict verdict = session_.optimizer().finish_backward();
  session_.optimizer().step(verdict, hyper(lr));
  if (!options_.lru) end_plan();
  return verdict;
}

void Loop::step() {
  const auto start = Clock::now();
  const Pass pass = pending_ ? Pass::step : Pass::fresh_step;
  const double lr = learning_rate(options_, position_.steps_seen);
  timed_ = record_.expects_events(position_.steps_seen + 1);
  clock_error_ns_ = session_.time_by_events(timed_);
  before_ = session_.engine().begin_timeline();
  compute_before_ns_ = session_.compute_busy_ns();
  update_before_ns_ = session_.update_busy_ns();
  session_.begin_step(position_.steps_seen + 1);
  double loss = 0;
  const Verdict verdict = train_pass(pass, loss, lr);
  agreed_ = {.loss = loss, .interrupted = interrupt_->load() > 0, .commit_due = commit_is_due()};
  agree(agreed_);
  pending_ = verdict.finite;
  ++position_.steps_seen;
  position_.samples_seen += samples_a_step();
  position_.step += verdict.finite ? 1 : 0;
  position_.skipped_in_a_row = verdict.finite ? 0 : position_.skipped_in_a_row + 1;
  const EngineCounters after = session_.engine().end_timeline();
  report(pass, agreed_.loss, verdict, lr, seconds_since(start), after);
}

/// Several ranks stop where all have agreed on it, one at once.
bool Loop::interrupted() const { return options_.shards.count > 1 ? agreed_.interrupted : interrupt_->load() > 0; }

void Loop::agree(Agreement& mine) {
  Communicator& communicator = session_.communicator();
  if (communicator.size() == 1) return;
  static_assert(std::is_trivially_copyable_v<Agreement>);
  std::vector<Agreement> all(static_cast<std::size_t>(communicator.size()));
  communicator.exchange(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  mine = {.commit_due = all.front().commit_due};
  for (const Agreement& one : all) {
    mine.loss += one.loss;
    mine.interrupted = mine.interrupted || one.interrupted;
  }
}

void Loop::report(Pass pass, double loss, const Verdict& verdict, double lr, double seconds,
                  const EngineCounters& now) {
  const bool planned = pass == Pass::step && !options_.lru;
  StepSample sample{.loss = loss, .norm = verdict.norm, .seconds = seconds};
  sample.compute_s = static_cast<double>(session_.compute_busy_ns() - compute_before_ns_) * 1e-9;
  sample.update_s = static_cast<double>(session_.update_busy_ns() - update_before_ns_) * 1e-9;
  sample.skipped = !verdict.finite;
  sample.planned = pass == Pass::step;
  summary_.add(sample);
  StepReport step{.step = position_.steps_seen, .steps = options_.steps, .loss = loss, .norm = verdict.norm};
  step.seconds = seconds;
  step.lr = lr;
  step.skipped = sample.skipped;
  step.tokens = samples_a_step() * static_cast<std::uint64_t>(options_.shape.length);
  for (int i = 0; i < kLinks; ++i) step.link_bytes[i] = now.link[i].bytes - before_.link[i].bytes;
  step.resident_bytes = resident_bytes();
  step.fraction_of_limit = summary_.fraction_of_limit();
  const std::uint64_t deviations = now.deviations - before_.deviations;
  record_.write_step(step.step, deviations > 0, step_fields(step, sample, before_, now) + clock_fields(),
                     session_.access().events(), &session_.timeline());
  if (sample.planned && summary_.steady_steps() == kStepsBeforeOutlook) write_outlook();
  if (observer_.stepped) observer_.stepped(step);
  watch_deviations(planned, deviations);
}

/// Which clock the spans of the device have.
std::string Loop::clock_fields() const {
  const bool events = timed_ && session_.accelerator() != nullptr;
  return fmt::format(",\"clock\":\"{}\",\"clock_error_ns\":{}", events ? "device" : "host", clock_error_ns_);
}

/// A deviation costs time only; when steps keep deviating, the next one is traced and planned from.
void Loop::watch_deviations(bool planned, std::uint64_t deviations) {
  if (!planned) return;
  if (tracing_) {
    tracing_ = false;
    Trace trace = session_.access().take_trace();
    const Budgets& budgets = prepared_.plan.budgets;
    const LeastBudget least = least_budget(trace, prepared_.code.blocks, budgets.frame_bytes, budgets.device_bytes > 0);
    if (least.host_bytes > budgets.host_bytes || least.device_bytes > budgets.device_bytes) return;
    Plan plan = make_plan(plan_input(prepared_, trace, session_.rates()));
    plans_[0] = {std::move(trace), std::move(plan)};
    plan_in_use_ = -1;
    prepared_.cycle = {};
    say("Steps kept deviating from the trace: it was taken again from a live step.");
    return;
  }
  deviating_in_a_row_ = deviations > 0 ? deviating_in_a_row_ + 1 : 0;
  if (deviating_in_a_row_ < kDeviatingStepsBeforeRenewal) return;
  deviating_in_a_row_ = 0;
  tracing_ = true;
}

/// What the planner says of a step with the medians so far; without a plan there is none.
void Loop::write_outlook() {
  if (options_.lru || summary_.steady_steps() == 0) return;
  record_.write("outlook", outlook_fields(options_, prepared_, session_.rates(), summary_.limit(),
                                          session_.accelerator(), position_.steps_seen));
  record_.flush();
}

void Loop::stop_when_never_finite() {
  if (position_.skipped_in_a_row < kMostSkippedInARow) return;
  commit();
  throw Error(
      fmt::format("Gradients of {} steps in a row were not finite, up to step {}. Nothing of these steps was "
                  "applied. Lower --learning-rate, or check the data and the model's weights.",
                  position_.skipped_in_a_row, position_.steps_seen));
}

/// After the step under way.
bool Loop::commit_is_due() const {
  if (options_.nvme_capacity == 0) return false;
  const CommitEvery& every = options_.commit_every;
  if (every.steps > 0) return (position_.steps_seen + 1) % every.steps == 0;
  return seconds_since(last_commit_) >= every.seconds;
}

void Loop::commit() {
  if (options_.nvme_capacity == 0 || committed_steps_ == position_.steps_seen) return;
  const auto start = Clock::now();
  const EngineCounters before = session_.engine().counters();
  begin_commit_cycle();
  session_.commit(position_);
  pending_ = false;
  keep_algorithms();
  committed_steps_ = position_.steps_seen;
  last_commit_ = Clock::now();
  const double seconds = seconds_since(start);
  record_.write("commit", commit_fields(seconds, before, session_.engine().counters()));
  record_.flush();
  if (observer_.committed) observer_.committed(position_.steps_seen, seconds);
}

std::string Loop::commit_fields(double seconds, const EngineCounters& before, const EngineCounters& after) const {
  const auto moved = [&](Link link) {
    const auto i = static_cast<std::size_t>(link);
    return after.link[i].bytes - before.link[i].bytes;
  };
  std::string links;
  for (int i = 0; i < kLinks; ++i)
    links += fmt::format("{}\"{}\":{}", i == 0 ? "" : ",", name_of(static_cast<Link>(i)), moved(static_cast<Link>(i)));
  return fmt::format("\"step\":{},\"seconds\":{},\"written_bytes\":{},\"link_bytes\":{{{}}}", position_.steps_seen,
                     seconds, moved(Link::nvme_write), links);
}

/// A run that goes on from this commit multiplies as this one.
void Loop::keep_algorithms() {
  const Accelerator* accelerator = session_.accelerator();
  if (accelerator == nullptr || accelerator->algorithm_count() == algorithms_kept_) return;
  folder_.write_file(name_for(options_.shards, kAlgorithmsFile), accelerator->algorithms());
  algorithms_kept_ = accelerator->algorithm_count();
}

void Loop::evaluate() {
  StepShape shape = options_.shape;
  shape.accumulate = 1;
  const auto batch = static_cast<std::uint64_t>(shape.batch);
  const std::uint64_t batches =
      std::clamp<std::uint64_t>(inputs_.validation_order->samples() / batch, 1, kMostEvaluationBatches);
  const std::uint64_t samples = batches * batch, at_once = batch * options_.shards.count;
  session_.optimizer().flush();
  pending_ = false;
  Agreement sum;
  for (std::uint64_t first = 0; first < samples; first += at_once) {
    const SampleRun mine = samples_of(std::min(at_once, samples - first), options_.shards.rank, options_.shards.count);
    read_batches(*inputs_.validation, *inputs_.validation_order, first + mine.first, mine.count, shape,
                 evaluation_batches_);
    session_.access().begin_step(false);
    if (!options_.lru) use_plan(Pass::evaluation);
    sum.loss += prepared_.code.transformer->evaluate(session_.runtime(), session_.optimizer(), evaluation_batches_[0]);
    if (!options_.lru) end_plan();
  }
  agree(sum);
  const double loss = sum.loss / static_cast<double>(samples * static_cast<std::uint64_t>(shape.length));
  summary_.evaluated(position_.steps_seen, loss);
  record_.write("evaluation", fmt::format("\"step\":{},\"loss\":{}", position_.steps_seen, json_number(loss)));
  if (observer_.evaluated) observer_.evaluated(position_.steps_seen, loss);
}

/// What processes of this run that died left of their exports. The run folder is locked: none is under way.
void Loop::remove_torn_exports() const {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  os::list_folder(folder_.path(), &names);
  std::error_code ignored;
  for (const std::string& name : names)
    if (name.starts_with(kExportPrefix) && name.ends_with(kUnfinished))
      fs::remove_all(fs::path(folder_.path()) / name, ignored);
}

/// Whole or not there: made under another name.
void Loop::export_now() {
  namespace fs = std::filesystem;
  commit();
  if (options_.shards.rank > 0) return session_.export_to("", {});  // rank 0 writes what all read
  const std::string folder = fmt::format("{}/{}{:06}", folder_.path(), kExportPrefix, position_.steps_seen);
  const std::string temporary = folder + kUnfinished;
  std::error_code ignored;
  try {
    session_.export_to(temporary, [&](std::uint64_t done, std::uint64_t total) {
      if (observer_.progress) observer_.progress("Exporting", done, total);
    });
  } catch (...) {
    fs::remove_all(temporary, ignored);
    throw;
  }
  fs::remove_all(folder, ignored);
  if (const std::int64_t result = os::rename(temporary, folder); result < 0)
    throw IoError({"rename", folder, "", 0, 0, 0, static_cast<int>(-result), ""});
  say(fmt::format("Exported to {}.", folder));
}

std::string Loop::run(const std::atomic<int>& interrupt) {
  interrupt_ = &interrupt;
  agreed_ = {.interrupted = interrupt.load() > 0};
  agree(agreed_);
  bool ends = interrupted();
  while (!last() && !ends) {
    step();
    stop_when_never_finite();
    ends = interrupted();
    const std::uint64_t seen = position_.steps_seen;
    if (options_.evaluate_every > 0 && seen % options_.evaluate_every == 0 && !ends) evaluate();
    if (agreed_.commit_due || ends || last()) commit();
    if (options_.export_every > 0 && seen % options_.export_every == 0) export_now();
  }
  session_.optimizer().flush();
  write_outlook();
  std::string text = summary_.to_json(session_.engine().counters(), session_.store_facts(), ends && !last(),
                                      position_.steps_seen, session_.accelerator());
  folder_.write_file(name_for(options_.shards, "summary.json"), text);
  record_.write("end", fmt::format("\"step\":{},\"interrupted\":{}", position_.steps_seen, ends && !last()));
  record_.flush();
  return text;
}

}  // namespace transload
