// plan: what a run would use and how long its steps would take, without starting it.
//
// On this machine the trainer itself checks the settings, as it would for a run. For a box the settings are checked
// without looking at this machine. Either way the plan is then made once more for the forecast, of the same chunk size.
#include <fmt/format.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/size.h"
#include "cli/among_ranks.h"
#include "cli/box.h"
#include "cli/commands.h"
#include "cli/forecast_text.h"
#include "cli/plan_text.h"
#include "cli/probe.h"
#include "cli/probe_cache.h"
#include "train/accelerator.h"
#include "train/calibrate.h"
#include "train/collective_rates.h"
#include "train/fits.h"
#include "train/inputs.h"

namespace transload::cli {
namespace {

constexpr double kSecondsAWeek = 7 * 86400.0;

struct Planned {
  TrainOptions options;
  std::unique_ptr<Accelerator> accelerator;  // outlives the kernels in `prepared`
  Prepared prepared;
  MachineRates rates;
  Forecast forecast;
  int drive_sharers = 1;  ///< ranks whose stores lie on the drive of this one's
};

std::string store_folder(const TrainOptions& options) {
  if (options.nvme_capacity == 0) return {};
  return options.nvme.empty() ? options.run : options.nvme;
}

/// The folder where the store will lie may not be there yet.
std::string existing_folder(std::filesystem::path path) {
  path = std::filesystem::absolute(path);
  while (!std::filesystem::is_directory(path) && path.has_relative_path()) path = path.parent_path();
  return path.string();
}

std::string folder_to_measure_in() {
  std::error_code failed;
  const std::string cache = cache_folder();
  if (!cache.empty()) std::filesystem::create_directories(cache, failed);
  const bool usable = !cache.empty() && !failed && ::access(cache.c_str(), W_OK) == 0;
  return usable ? cache : std::filesystem::temp_directory_path().string();
}

/// All ranks compute at once, so each measures what it will get of processor and memory. GPUs are each rank's own, and
/// a short training of one process takes the first one: rank 0's.
ComputeRates measure_together(const ModelConfig& config, const TrainOptions& options, Communicator& communicator) {
  const std::string below = folder_to_measure_in();
  if (options.device == DeviceKind::cuda)
    return communicator.rank() == 0 ? measure_compute(config, options, below) : ComputeRates{};
  communicator.barrier();
  return slowest_of(measure_compute(config, options, below), communicator);
}

/// Every rank takes part; rank 0 keeps it.
void probe_into(ProbeCache& cache, const Planned& planned, const ModelConfig& config, Communicator& communicator) {
  cache.keep_compute(compute_key(config, planned.options), measure_together(config, planned.options, communicator));
  if (communicator.size() > 1)
    cache.keep_collectives(collective_key(planned.options),
                           measure_collectives(planned.options, communicator, planned.accelerator.get()));
  if (communicator.rank() > 0) return;
  if (const std::string folder = store_folder(planned.options); !folder.empty()) {
    const FolderFacts facts = probe_folder(existing_folder(folder));
    if (facts.error.empty() && facts.not_measured.empty())
      cache.keep_folder(facts.folder, facts.read, facts.write, facts.duplex);
  }
  if (!cache.save())
    fmt::print(stderr, "What was probed could not be kept in {}: it will be measured anew next time.\n",
               cache_folder().empty() ? "a cache (neither XDG_CACHE_HOME nor HOME is set)" : cache_folder());
}

/// Ranks whose stores lie on one drive share what it can do.
int count_drive_sharers(const TrainOptions& options, Communicator& communicator) {
  if (communicator.size() == 1) return 1;
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  struct stat facts {};
  const std::string folder = store_folder(options);
  if (!folder.empty()) ::stat(existing_folder(folder).c_str(), &facts);
  const std::vector<std::string> all = communicator.all_gather_strings(fmt::format("{} {}", host, facts.st_dev));
  return static_cast<int>(std::ranges::count(all, all[static_cast<std::size_t>(communicator.rank())]));
}

/// Of this machine, as measured before or now.
MachineRates rates_here(const Planned& planned, const ProbeCache& cache) {
  MachineRates rates =
      cache.rates(compute_key(planned.prepared.plan.config, planned.options), store_folder(planned.options));
  if (planned.options.shards.count > 1) rates.collectives = cache.collectives(collective_key(planned.options));
  for (double* rate : {&rates.links.nvme_read, &rates.links.nvme_write, &rates.links.nvme_duplex})
    *rate /= planned.drive_sharers;
  if (const double most = planned.options.link_rate; most > 0)
    for (double* rate : {&rates.links.host_to_device, &rates.links.device_to_host})
      if (*rate > most) *rate = most;
  return rates;
}

/// What all ranks do together: agree on the settings and on memory, and measure. Rank 0 then plans.
void plan_here(Planned& planned, const PlanArguments& arguments, Communicator& communicator) {
  const Place& place = communicator.place();
  ModelConfig config;
  std::vector<std::string> notes;
  {
    Observer observer;
    if (!arguments.json && place.rank == 0) observer.say = [](const std::string& line) { fmt::print("{}\n", line); };
    const Trainer trainer(arguments.options, observer, &communicator);
    planned.options = trainer.options();
    config = trainer.plan().config;
    notes = trainer.plan().notes;
  }
  if (planned.options.device == DeviceKind::cuda) planned.accelerator = open_accelerator(place.local_rank);
  planned.drive_sharers = count_drive_sharers(planned.options, communicator);
  ProbeCache cache;
  const bool probe = communicator.broadcast_string(arguments.probe ? "probe" : "", 0) == "probe";
  if (probe) probe_into(cache, planned, config, communicator);
  if (place.rank > 0) return;
  planned.prepared = prepare(planned.options, config, planned.options.chunk_size, planned.accelerator.get());
  planned.prepared.plan.notes = notes;
  planned.rates = rates_here(planned, cache);
}

void plan_elsewhere(Planned& planned, const PlanArguments& arguments) {
  planned.options = arguments.options;
  check_settings(planned.options);
  resolve_batch(planned.options);
  const Inputs inputs = open_model(planned.options);
  std::vector<std::string> notes;
  resolve_memory(planned.options, nullptr, notes);
  planned.prepared = prepare(planned.options, inputs.config, planned.options.chunk_size, nullptr);
  RunPlan& plan = planned.prepared.plan;
  plan.notes = inputs.config.notes;  // what is said of memory is said of this machine
  if (plan.store_bytes > planned.options.nvme_capacity)
    plan.notes.push_back(fmt::format("The store takes {} and the drives of the box hold {}.",
                                     format_size(plan.store_bytes), format_size(planned.options.nvme_capacity)));
  const Box box = read_box(arguments.box);
  planned.rates = rates_of(box);
  if (const std::string note = best_case_text(box); !note.empty()) plan.notes.push_back(note);
}

/// What could be asked for instead, with no more of the drive than is free there.
Capacity capacity_here(const Planned& planned, bool box) {
  TrainOptions o = planned.options;
  if (const std::string folder = store_folder(o); !box && !folder.empty()) {
    std::error_code ignored;
    const auto space = std::filesystem::space(existing_folder(folder), ignored);
    if (!ignored) o.nvme_capacity = std::min<std::uint64_t>(o.nvme_capacity, space.available);
  }
  return capacity_of(o, planned.prepared.plan.config, planned.prepared.plan.store_bytes);
}

ClosedForm closed_form_of(const Planned& planned, const std::optional<Box>& box) {
  const ModelConfig& config = planned.prepared.plan.config;
  const TrainOptions& o = planned.options;
  const MachineRates& rates = planned.rates;
  const bool device = o.device != DeviceKind::cpu;
  return {.parameters = static_cast<double>(planned.prepared.plan.parameters),
          .layers = static_cast<double>(config.layers),
          .hidden = static_cast<double>(config.hidden),
          .length = static_cast<double>(o.shape.length),
          .tokens = planned.forecast.tokens,
          .element_bytes = static_cast<double>(size_of(o.dtype)),
          .kept = o.shape.recompute == Recompute::none ? 1.0 : 0.0,
          .products = rates.products,
          .network = box ? box->network_bandwidth : rates.links.memory / 2,
          .latency_s = box ? box->network_latency_s : 0,
          .memory_bytes = static_cast<double>(o.host_memory + o.device_memory),
          .to_device = device ? rates.links.host_to_device : 0,
          .from_device = device ? rates.links.device_to_host : 0,
          .nvme_read = rates.links.nvme_read,
          .nvme_write = rates.links.nvme_write,
          .host_bytes = static_cast<double>(o.host_memory),
          .update_memory = rates.updates * 26};
}

double endurance_of(const Planned& planned, const std::optional<Box>& box) {
  if (box) return box->nvme_endurance;
  const std::string folder = store_folder(planned.options);
  return folder.empty() ? 0 : endurance_bytes(folder);
}

/// Of all ranks on the drive; with commits where they come by steps.
Wear wear_of(const Planned& planned) {
  const std::uint64_t steady = planned.prepared.plan.plan.bytes[static_cast<int>(Link::nvme_write)];
  const std::uint64_t every = planned.options.commit_every.steps;
  const CommitCycle& cycle = planned.prepared.cycle;
  const bool commits = every > 0 && cycle.planned();
  const double rank = commits ? cycle.a_step(Link::nvme_write, every, steady) : static_cast<double>(steady);
  return {.step_bytes = rank * planned.drive_sharers, .ranks = planned.drive_sharers, .commits = commits};
}

struct DriveLife {
  double endurance_bytes = 0, step_bytes = 0;
  double steps = 0, weeks = 0;  ///< 0: not known, or nothing is written
};
DriveLife drive_life(const Planned& planned, const std::optional<Box>& box) {
  DriveLife life{.endurance_bytes = endurance_of(planned, box), .step_bytes = wear_of(planned).step_bytes};
  if (life.step_bytes > 0) life.steps = life.endurance_bytes / life.step_bytes;
  life.weeks = life.steps * planned.forecast.time.step_s / kSecondsAWeek;
  return life;
}

std::vector<ClosedFormRow> rows_of(const Planned& planned, const PlanArguments& arguments,
                                   const std::optional<Box>& box) {
  const auto [first, last] = parse_ranks(arguments.ranks);
  if (planned.rates.products <= 0)
    throw InputError("--ranks needs rates: say --probe to measure this machine, or name a --box.");
  const ClosedForm form = closed_form_of(planned, box);
  std::vector<ClosedFormRow> rows = ranks_rows(form, first, last);
  if (arguments.html.empty()) return rows;
  std::ofstream file(arguments.html);
  file << ranks_html(form, rows, fmt::format("{} on {} to {} ranks", planned.options.model, first, last));
  if (!file.flush()) {
    IoError::Details details;
    details.operation = "write";
    details.path = arguments.html;
    details.error = errno;
    details.advice = "Name another file with --html.";
    throw IoError(details);
  }
  return rows;
}

/// The device of a box has memory of its own; an emulated one here is a part of this machine's.
Search search_with_progress(const Planned& planned, bool box) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  auto said = begin;
  const auto done = [&](std::size_t tried, std::size_t all) {
    const auto now = Clock::now();
    if (now - said < std::chrono::seconds(3) || tried == all) return;
    said = now;
    const double left = std::chrono::duration<double>(now - begin).count() / static_cast<double>(tried) *
                        static_cast<double>(all - tried);
    fmt::print(stderr, "search: {} of {} settings, about {} left\n", tried, all, format_duration(left));
  };
  const TrainOptions& o = planned.options;
  return search_settings(o, planned.prepared.plan.config, planned.rates, planned.accelerator.get(),
                         !box && o.device == DeviceKind::emulated, done);
}

void print_json(const Planned& planned, const PlanArguments& arguments, const std::optional<Box>& box) {
  const TrainOptions& o = planned.options;
  const RunPlan& plan = planned.prepared.plan;
  nlohmann::json out = forecast_json(plan, o, planned.forecast, planned.prepared.cycle, planned.rates);
  if (o.shards.count > 1)
    out["rank_of"] = {{"rank", o.shards.rank},
                      {"count", o.shards.count},
                      {"here", o.ranks_here},
                      {"transport", o.transport},
                      {"gathered_bytes", planned.forecast.gathered_bytes},
                      {"scattered_bytes", planned.forecast.scattered_bytes}};
  const DriveLife life = drive_life(planned, box);
  out["drive_life"] = {{"endurance_bytes", life.endurance_bytes},
                       {"step_bytes", life.step_bytes},
                       {"commits", wear_of(planned).commits},
                       {"steps", life.steps},
                       {"weeks", life.weeks}};
  out["capacity"] = capacity_json(capacity_here(planned, box.has_value()));
  out["what_if"] = what_if_json(what_if(o, plan.config, planned.rates, planned.accelerator.get()));
  if (!arguments.ranks.empty()) out["ranks"] = ranks_json(rows_of(planned, arguments, box));
  if (arguments.search) {
    const Search search = search_with_progress(planned, box.has_value());
    out["search"] = search_json(search.candidates);
    out["search_least_host_memory"] = search.least_host_bytes;
  }
  fmt::print("{}\n", out.dump(2));
}

std::string life_text(const Planned& planned, const std::optional<Box>& box) {
  const TrainOptions& o = planned.options;
  const Wear wear = wear_of(planned);
  if (!box && o.nvme_capacity != 0) return wear_text(wear, store_folder(o), planned.forecast.time.step_s, o.steps);
  const DriveLife life = drive_life(planned, box);
  if (!box || life.weeks <= 0) return "";
  return fmt::format("The box's drives stand {:.3g} such steps, {:.1f} weeks without a pause (commits {}).\n",
                     life.steps, life.weeks, wear.commits ? "included" : "are extra");
}

void print_text(const Planned& planned, const PlanArguments& arguments, const std::optional<Box>& box) {
  const TrainOptions& o = planned.options;
  const RunPlan& plan = planned.prepared.plan;
  fmt::print("{}", plan_text(plan, o));
  fmt::print("{}", forecast_text(plan, planned.forecast, planned.rates));
  fmt::print("{}", commit_text(planned.prepared.cycle, o, plan.plan));
  fmt::print("{}", life_text(planned, box));
  fmt::print("{}", capacity_text(capacity_here(planned, box.has_value())));
  fmt::print("{}",
             what_if_text(what_if(o, plan.config, planned.rates, planned.accelerator.get()), given_host_memory(o)));
  if (arguments.search) fmt::print("{}", search_text(search_with_progress(planned, box.has_value())));
  if (!arguments.ranks.empty()) fmt::print("{}", ranks_text(rows_of(planned, arguments, box)));
}

void check(const PlanArguments& arguments) {
  if (arguments.probe && !arguments.box.empty())
    throw InputError("--probe contradicts --box: a box that is not here cannot be measured.");
  if (!arguments.box.empty() && arguments.options.resume)
    throw InputError("--resume contradicts --box: a run is resumed where it lies.");
  if (!arguments.box.empty() && detect_launch().place.size > 1)
    throw InputError(
        "--box contradicts a launcher: ranks plan the machine that they are on. --ranks says what more do.");
  if (!arguments.box.empty() && arguments.options.device == DeviceKind::cuda)
    throw InputError("--device cuda contradicts --box: the box's device is planned as emulated.");
  if (!arguments.html.empty() && arguments.ranks.empty()) throw InputError("--html needs --ranks: it is its plot.");
  if (!arguments.ranks.empty()) parse_ranks(arguments.ranks);
}

}  // namespace

int run_plan(const PlanArguments& arguments) {
  check(arguments);
  Planned planned;
  std::optional<Box> box;
  if (arguments.box.empty()) {
    const Launch launch = detect_launch();
    const auto plan = [&](Communicator& communicator) {
      plan_here(planned, arguments, communicator);
      return kDone;
    };
    among_ranks(launch, arguments.options, plan, [](const RankLostError&) { return ""; });
    if (planned.options.shards.rank > 0) return kDone;
  } else {
    box = read_box(arguments.box);
    plan_elsewhere(planned, arguments);
  }
  planned.forecast = forecast(planned.prepared, planned.options, planned.rates);
  if (arguments.search && !planned.forecast.timed)
    throw InputError("--search needs rates: say --probe to measure this machine, or name a --box.");
  (arguments.json ? print_json : print_text)(planned, arguments, box);
  return kDone;
}

}  // namespace transload::cli
