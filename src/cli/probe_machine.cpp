// Cores, instruction sets, memory, page locking, huge pages.
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "base/size.h"
#include "cli/probe.h"
#include "kernels/cpu/adamw.h"
#include "kernels/cpu/products.h"
#include "train/trainer.h"

namespace transload::cli {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The value of "key : value" in /proc/cpuinfo (first core).
std::string cpuinfo(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (line.starts_with(key) && colon != std::string::npos && colon + 2 <= line.size()) return line.substr(colon + 2);
  }
  return "";
}

/// Instruction sets that make a difference here, in the kernel's spelling.
std::vector<std::string> instruction_sets() {
  std::istringstream words(cpuinfo("flags"));
  std::set<std::string> flags;
  for (std::string word; words >> word;) flags.insert(word);
  std::vector<std::string> found;
  for (const char* name : {"sse4_1", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx_vnni", "amx_bf16"})
    if (flags.count(name) > 0) found.emplace_back(name);
  return found;
}

/// cpu.max of the container: "200000 100000" is two cores.
double quota_cores() {
  std::istringstream line(first_line("/sys/fs/cgroup/cpu.max"));
  std::string quota;
  double period = 0;
  line >> quota >> period;
  if (quota.empty() || quota == "max" || period <= 0) return 0;
  return std::stod(quota) / period;
}

/// True where a mapping larger than the limit can be locked (root, CAP_IPC_LOCK).
bool locks_beyond(std::uint64_t limit) {
  const std::uint64_t bytes = std::min<std::uint64_t>(limit, 256 * MiB) + 64 * 1024;
  if (limit > 256 * MiB) return false;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  const bool locked = ::mlock(memory, bytes) == 0;
  ::munmap(memory, bytes);
  return locked;
}

}  // namespace

ProcessorFacts probe_processor() {
  ProcessorFacts facts;
  facts.name = cpuinfo("model name");
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) facts.cores = CPU_COUNT(&set);
  facts.quota_cores = quota_cores();
  facts.instruction_sets = instruction_sets();
  facts.optimizer_target = kernels::target_in_use();
  facts.products_bf16 = kernels::Products(Dtype::bf16).facts();
  facts.products_f32 = kernels::Products(Dtype::f32).facts();
  return facts;
}

MemoryFacts probe_memory() {
  const MemoryLimit limit = memory_limit();
  MemoryFacts facts;
  facts.total_bytes = limit.total_bytes;
  facts.available_bytes = limit.available_bytes;
  facts.reserve_bytes = limit.reserve_bytes;
  facts.source = limit.source;
  rlimit lock{};
  ::getrlimit(RLIMIT_MEMLOCK, &lock);
  facts.lockable_bytes = lock.rlim_cur == RLIM_INFINITY ? UINT64_MAX : lock.rlim_cur;
  facts.lock_exempt = locks_beyond(facts.lockable_bytes);
  facts.transparent_huge_pages = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  const std::string reserved = first_line("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
  facts.reserved_huge_pages = reserved.empty() ? 0 : std::stoull(reserved);
  return facts;
}

}  // namespace transload::cli
