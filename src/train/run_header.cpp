#include "train/run_header.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/cpu/adamw.h"

namespace transload {

using Json = nlohmann::json;

namespace {

Json machine_json() {
  struct utsname system {};
  ::uname(&system);
  const MemoryLimit limit = memory_limit();
  return {{"kernel", system.release},
          {"architecture", system.machine},
          {"processors", ::sysconf(_SC_NPROCESSORS_ONLN)},
          {"memory_bytes", limit.total_bytes},
          {"memory_available_bytes", limit.available_bytes},
          {"memory_source", limit.source},
          {"pid", ::getpid()}};
}

Json rates_json(const Rates& rates) {
  return {{"nvme_read", rates.nvme_read},           {"nvme_write", rates.nvme_write},
          {"nvme_duplex", rates.nvme_duplex},       {"host_to_device", rates.host_to_device},
          {"device_to_host", rates.device_to_host}, {"memory", rates.memory}};
}

Json paths_json(const std::optional<Store::Facts>& store) {
  Json paths = {{"optimizer", kernels::target_in_use()}};
  if (!store) return paths;
  paths["io"] = store->io_path;
  paths["io_reason"] = store->io_reason;
  paths["direct"] = store->direct;
  paths["direct_reason"] = store->direct_reason;
  paths["file_system"] = store->file_system;
  return paths;
}

Json blocks_json(const std::vector<BlockSpec>& blocks) {
  Json out = Json::array();
  for (const BlockSpec& block : blocks) out.push_back({block.name, block.bytes, block.plane, block.durable});
  return out;
}

Json shape_json(const StepShape& shape) {
  return {{"batch", shape.batch},
          {"length", shape.length},
          {"accumulate", shape.accumulate},
          {"recompute", shape.recompute == Recompute::layer ? "layer" : "none"}};
}

/// An object's inside, for a line that has an event's name before it.
std::string inside(const Json& object) {
  const std::string text = object.dump();
  return text.substr(1, text.size() - 2);
}

}  // namespace

Json gpu_json(const Accelerator* accelerator) {
  if (accelerator == nullptr) return nullptr;
  const AcceleratorFacts& facts = accelerator->facts();
  const HostMemoryFacts host = accelerator->host_memory();
  return {{"name", facts.name},
          {"ordinal", facts.ordinal},
          {"capability", facts.capability},
          {"pci", facts.pci},
          {"driver", facts.driver},
          {"runtime", facts.runtime},
          {"total_bytes", facts.total_bytes},
          {"free_bytes", facts.free_bytes},
          {"taken_bytes", facts.taken_bytes},
          {"pinned", host.unpinned_reason.empty()},
          {"pinned_reason", host.unpinned_reason},
          {"numa_node", host.node < 0 ? Json(nullptr) : Json(host.node)},
          {"numa_bound", host.unbound_reason.empty()},
          {"numa_reason", host.unbound_reason}};
}

std::string json_number(double v) { return std::isfinite(v) ? fmt::format("{}", v) : "null"; }

std::string run_header(const TrainOptions& options, const Prepared& prepared, const Rates& rates,
                       const std::optional<Store::Facts>& store, const Accelerator* accelerator,
                       std::uint64_t steps_before) {
  const RunPlan& plan = prepared.plan;
  Json links;
  for (int i = 0; i < kLinks; ++i)
    links[transload::name_of(static_cast<Link>(i))] = {{"planned_step_bytes", plan.plan.bytes[i]},
                                                       {"least_bytes", plan.plan.lower_bound[i]}};
  return inside({{"format", 1},
                 {"version", TRANSLOAD_VERSION},
                 {"machine", machine_json()},
                 {"model", options.model},
                 {"parameters", plan.parameters},
                 {"steps", options.steps},
                 {"steps_before", steps_before},
                 {"tokens_per_step", options.shape.samples_a_step() * options.shape.length},
                 {"ranks",
                  {{"rank", options.shards.rank},
                   {"count", options.shards.count},
                   {"here", options.ranks_here},
                   {"transport", options.transport},
                   {"tier", transload::name_of(options.comm_tier)},
                   {"gather_room", prepared.code.gathers.empty() ? 0 : prepared.code.gathers.front().room}}},
                 {"shape", shape_json(options.shape)},
                 {"device", transload::name_of(options.device)},
                 {"gpu", gpu_json(accelerator)},
                 {"policy", options.lru ? "lru" : "auto"},
                 {"threads", options.threads},
                 {"budgets",
                  {{"device", plan.budgets.device_bytes},
                   {"host", plan.budgets.host_bytes},
                   {"nvme", options.nvme_capacity == UINT64_MAX ? Json(nullptr) : Json(options.nvme_capacity)},
                   {"frame", plan.frame_bytes}}},
                 {"least", {{"device", plan.least_device_bytes}, {"host", plan.least_host_bytes}}},
                 {"chunk_size", plan.chunk_size},
                 {"updates", {{"chunks", plan.updated_chunks}, {"device", plan.device_updates}}},
                 {"workspace_bytes", plan.workspace_bytes},
                 {"store_bytes", plan.store_bytes},
                 {"rates", rates_json(rates)},
                 {"links", links},
                 {"paths", paths_json(store)},
                 {"blocks", blocks_json(prepared.code.blocks)}});
}

std::string optimizer_header(const std::vector<BlockSpec>& blocks, std::uint64_t device_bytes, std::uint64_t host_bytes,
                             std::uint64_t least_bytes, std::uint64_t frame_bytes,
                             const std::optional<Store::Facts>& store) {
  return inside(
      {{"format", 1},
       {"version", TRANSLOAD_VERSION},
       {"kind", "optimizer"},
       {"machine", machine_json()},
       {"budgets", {{"device", device_bytes}, {"host", host_bytes}, {"nvme", nullptr}, {"frame", frame_bytes}}},
       {"least", {{"device", 0}, {"host", least_bytes}}},
       {"paths", paths_json(store)},
       {"blocks", blocks_json(blocks)}});
}

std::string counter_fields(const EngineCounters& before, const EngineCounters& after) {
  std::string links;
  for (int i = 0; i < kLinks; ++i)
    links +=
        fmt::format("{}\"{}\":{{\"bytes\":{},\"transfers\":{},\"busy_ns\":{}}}", i == 0 ? "" : ",",
                    transload::name_of(static_cast<Link>(i)), after.link[i].bytes - before.link[i].bytes,
                    after.link[i].transfers - before.link[i].transfers, after.link[i].busy_ns - before.link[i].busy_ns);
  return fmt::format(
      "\"wait_ns\":{},\"hits\":{},\"late\":{},\"demand\":{},\"wasted\":{},\"deviations\":{},\"links\":{{{}}}",
      after.wait_ns - before.wait_ns, after.hits - before.hits, after.late - before.late, after.demand - before.demand,
      after.wasted - before.wasted, after.deviations - before.deviations, links);
}

std::string step_fields(const StepReport& step, const StepSample& sample, const EngineCounters& before,
                        const EngineCounters& after) {
  const auto ns = [](double seconds) { return static_cast<std::uint64_t>(seconds * 1e9); };
  return fmt::format(
      "\"loss\":{},\"norm\":{},\"learning_rate\":{},\"skipped\":{},\"planned\":{},\"tokens\":{},\"wall_ns\":{},"
      "\"compute_ns\":{},\"update_ns\":{},\"resident_bytes\":{},{}",
      json_number(step.loss), json_number(step.norm), json_number(step.lr), step.skipped, sample.planned, step.tokens,
      ns(step.seconds), ns(sample.compute_s), ns(sample.update_s), step.resident_bytes, counter_fields(before, after));
}

}  // namespace transload
