// probe: prints what was found, as text or JSON, and what to do about what is missing.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/size.h"
#include "cli/commands.h"
#include "cli/probe.h"

namespace transload::cli {
namespace {

constexpr std::uint64_t kSmallLock = 64 * MiB;

void advise_folder(const FolderFacts& f, std::vector<std::string>& advice) {
  if (!f.error.empty()) {
    advice.push_back(fmt::format("{}: {}{}", f.folder, f.error, f.error.ends_with('.') ? "" : "."));
    return;
  }
  if (f.file_system == "tmpfs" || f.file_system == "ramfs")
    advice.push_back(
        fmt::format("{} is on {}, which is memory: a store there saves nothing. Choose a folder on a drive.", f.folder,
                    f.file_system));
  if (!f.direct)
    advice.push_back(
        fmt::format("{}: no direct I/O ({}); the page cache will take memory beside the budgets. ext4 and "
                    "xfs have it.",
                    f.folder, f.direct_reason));
  if (!f.io_reason.empty())
    advice.push_back(
        fmt::format("{}: no io_uring ({}); threads are used, with a little more processor time. In a "
                    "container, allow it in the seccomp profile; on a host, set sysctl "
                    "kernel.io_uring_disabled=0.",
                    f.folder, f.io_reason));
}

nlohmann::json json_of(const FolderFacts& f) {
  if (!f.error.empty()) return {{"folder", f.folder}, {"error", f.error}};
  return {{"folder", f.folder},
          {"file_system", f.file_system},
          {"free_bytes", f.free_bytes},
          {"total_bytes", f.total_bytes},
          {"direct_io", f.direct},
          {"direct_io_reason", f.direct_reason},
          {"alignment_bytes", f.alignment},
          {"io_path", f.io_path},
          {"io_reason", f.io_reason},
          {"measured_bytes", f.measured_bytes},
          {"not_measured", f.not_measured},
          {"read_bytes_per_s", f.read},
          {"write_bytes_per_s", f.write},
          {"duplex_bytes_per_s", f.duplex}};
}

nlohmann::json json_of(const GpuFacts::Gpu& g) {
  const HostMemoryFacts& host = g.links.host;
  return {{"name", g.facts.name},
          {"ordinal", g.facts.ordinal},
          {"capability", g.facts.capability},
          {"pci", g.facts.pci},
          {"driver", g.facts.driver},
          {"runtime", g.facts.runtime},
          {"total_bytes", g.facts.total_bytes},
          {"numa_node", g.near.node < 0 ? nlohmann::json() : nlohmann::json(g.near.node)},
          {"numa_reason", g.near.node < 0 ? g.near.reason : host.unbound_reason},
          {"error", g.error},
          {"pinned", g.error.empty() && host.unpinned_reason.empty()},
          {"pinned_reason", host.unpinned_reason},
          {"pinned_bytes", 2 * g.links.bytes},
          {"host_to_device_bytes_per_s", g.links.host_to_device},
          {"device_to_host_bytes_per_s", g.links.device_to_host},
          {"both_bytes_per_s", g.links.both}};
}

nlohmann::json json_of(const ProbeFacts& p) {
  nlohmann::json nodes = nlohmann::json::array(), folders = nlohmann::json::array();
  for (const numa::Node& n : p.numa.nodes) nodes.push_back({{"node", n.node}, {"bytes", n.bytes}, {"cores", n.cores}});
  for (const FolderFacts& f : p.folders) folders.push_back(json_of(f));
  nlohmann::json gpus = nlohmann::json::array();
  for (const GpuFacts::Gpu& g : p.gpu.gpus) gpus.push_back(json_of(g));
  const std::uint64_t lockable = p.memory.lockable_bytes;
  return {{"processor",
           {{"name", p.processor.name},
            {"cores", p.processor.cores},
            {"quota_cores", p.processor.quota_cores},
            {"instruction_sets", p.processor.instruction_sets},
            {"optimizer_target", p.processor.optimizer_target},
            {"products_bf16", p.processor.products_bf16},
            {"products_fp32", p.processor.products_f32}}},
          {"memory",
           {{"total_bytes", p.memory.total_bytes},
            {"available_bytes", p.memory.available_bytes},
            {"reserve_bytes", p.memory.reserve_bytes},
            {"source", p.memory.source},
            {"lockable_bytes", lockable == UINT64_MAX ? nlohmann::json() : nlohmann::json(lockable)},
            {"lock_exempt", p.memory.lock_exempt},
            {"transparent_huge_pages", p.memory.transparent_huge_pages},
            {"reserved_huge_pages", p.memory.reserved_huge_pages}}},
          {"numa", {{"source", p.numa.source}, {"nodes", nodes}}},
          {"gpus", gpus},
          {"no_gpu_reason", p.gpu.reason},
          {"nvme", folders},
          {"advice", p.advice}};
}

void print_gpu(const GpuFacts::Gpu& g) {
  fmt::print("GPU {}        {}, {}, PCI {}, driver for CUDA {}, built with {}\n", g.facts.ordinal, g.facts.name,
             format_size(g.facts.total_bytes), g.facts.pci, g.facts.driver, g.facts.runtime);
  if (g.near.node >= 0)
    fmt::print("             nearest NUMA node {}\n", g.near.node);
  else
    fmt::print("             nearest NUMA node not known: {}\n", g.near.reason);
  if (!g.error.empty()) {
    fmt::print("             not measured: {}\n", g.error);
    return;
  }
  fmt::print("             to it {}, from it {}, both together {} in sum (over {} each way)\n",
             format_rate(g.links.host_to_device), format_rate(g.links.device_to_host), format_rate(g.links.both),
             format_size(g.links.bytes));
  const HostMemoryFacts& host = g.links.host;
  fmt::print("             {}\n", host.unpinned_reason.empty()
                                      ? fmt::format("page locking works: {} at once", format_size(2 * g.links.bytes))
                                      : "no page locking: " + host.unpinned_reason);
  if (g.near.node >= 0 && !host.unbound_reason.empty()) fmt::print("             {}\n", host.unbound_reason);
}

void print_machine(const ProbeFacts& p) {
  fmt::print("Processor    {}: {} cores", p.processor.name, p.processor.cores);
  if (p.processor.quota_cores > 0) fmt::print(" (the container's quota is {:.1f})", p.processor.quota_cores);
  fmt::print("\n             instruction sets: {}\n", fmt::join(p.processor.instruction_sets, " "));
  fmt::print("             optimizer: {}; products: {}; {}\n", p.processor.optimizer_target, p.processor.products_bf16,
             p.processor.products_f32);
  fmt::print("Memory       {} of {} available ({}); {} are kept in reserve by default\n",
             format_size(p.memory.available_bytes), format_size(p.memory.total_bytes), p.memory.source,
             format_size(p.memory.reserve_bytes));
  for (const numa::Node& n : p.numa.nodes)
    fmt::print("NUMA node {}  {}, cores {} ({})\n", n.node, format_size(n.bytes), n.cores, p.numa.source);
  for (const GpuFacts::Gpu& g : p.gpu.gpus) print_gpu(g);
  if (p.gpu.gpus.empty()) fmt::print("GPU          none: {}\n", p.gpu.reason);
  fmt::print("Page locking {}{}\n",
             p.memory.lockable_bytes == UINT64_MAX ? "no limit" : format_size(p.memory.lockable_bytes),
             p.memory.lock_exempt ? ", of which this process is exempt" : "");
  fmt::print("Huge pages   transparent: {}; reserved: {} of 2 MiB\n", p.memory.transparent_huge_pages,
             p.memory.reserved_huge_pages);
}

void print_folder(const FolderFacts& f) {
  fmt::print("NVMe folder  {}", f.folder);
  if (!f.error.empty()) {
    fmt::print(": cannot be used: {}\n", f.error);
    return;
  }
  fmt::print(": {}, {} free of {}\n", f.file_system, format_size(f.free_bytes), format_size(f.total_bytes));
  fmt::print("             {}, alignment {}; {}{}\n",
             f.direct ? "direct I/O" : fmt::format("buffered I/O ({})", f.direct_reason), format_size(f.alignment),
             f.io_path, f.io_reason.empty() ? "" : fmt::format(" (no io_uring: {})", f.io_reason));
  if (!f.not_measured.empty())
    fmt::print("             not measured: {}\n", f.not_measured);
  else
    fmt::print("             read {}, write {}, both together {} in sum (over {})\n", format_rate(f.read),
               format_rate(f.write), format_rate(f.duplex), format_size(f.measured_bytes));
}

}  // namespace

std::vector<std::string> advice_for(const ProbeFacts& p) {
  std::vector<std::string> advice;
  for (const FolderFacts& f : p.folders) advise_folder(f, advice);
  if (p.folders.empty()) advice.push_back("Name the folder of the store to have it measured: --nvme DIR.");
  if (p.memory.lockable_bytes < kSmallLock && !p.memory.lock_exempt)
    advice.push_back(
        fmt::format("Only {} of memory may be locked: raise it with 'ulimit -l', or memlock in "
                    "/etc/security/limits.conf.",
                    format_size(p.memory.lockable_bytes)));
  if (p.memory.transparent_huge_pages.find("[never]") != std::string::npos)
    advice.push_back(
        "Transparent huge pages are off, which can halve the disk's speed: write madvise to "
        "/sys/kernel/mm/transparent_hugepage/enabled.");
  if (p.processor.quota_cores > 0 && p.processor.quota_cores < p.processor.cores)
    advice.push_back(fmt::format("The container's quota is {:.1f} of {} cores: say --threads {}.",
                                 p.processor.quota_cores, p.processor.cores,
                                 std::max(1, static_cast<int>(p.processor.quota_cores))));
  return advice;
}

GpuFacts probe_gpus() {
  GpuFacts facts;
  for (AcceleratorFacts& found : list_accelerators(&facts.reason)) {
    GpuFacts::Gpu gpu{.facts = std::move(found), .near = {}, .links = {}, .error = {}};
    gpu.near = numa::nearest_node(gpu.facts.pci);
    try {
      gpu.links = measure_accelerator(gpu.facts.ordinal);
    } catch (const Error& e) {
      gpu.error = e.what();
    }
    facts.gpus.push_back(std::move(gpu));
  }
  return facts;
}

int run_probe(const ProbeArguments& arguments) {
  ProbeFacts facts{.processor = probe_processor(),
                   .memory = probe_memory(),
                   .numa = numa::nodes(),
                   .gpu = probe_gpus(),
                   .folders = {},
                   .advice = {}};
  bool failed = false;
  for (const std::string& folder : arguments.nvme) {
    facts.folders.push_back(probe_folder(folder));
    failed |= !facts.folders.back().error.empty();
  }
  facts.advice = advice_for(facts);
  if (arguments.json) {
    fmt::print("{}\n", json_of(facts).dump(2));
    return failed ? kFailed : kDone;
  }
  print_machine(facts);
  for (const FolderFacts& f : facts.folders) print_folder(f);
  for (const std::string& line : facts.advice) fmt::print("To do        {}\n", line);
  return failed ? kFailed : kDone;
}

}  // namespace transload::cli
