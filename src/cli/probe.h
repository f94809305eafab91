// What `transload probe` finds out. Measuring and printing are apart: each part is a plain record.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/numa/numa.h"
#include "train/accelerator.h"

namespace transload::cli {

struct ProcessorFacts {
  std::string name;
  int cores = 0;           ///< that this process may run on
  double quota_cores = 0;  ///< of the container; 0: none
  std::vector<std::string> instruction_sets;
  std::string optimizer_target;             ///< "AVX3", …
  std::string products_bf16, products_f32;  ///< which library and how
};

struct MemoryFacts {
  std::uint64_t total_bytes = 0, available_bytes = 0, reserve_bytes = 0;
  std::string source;
  std::uint64_t lockable_bytes = 0;  ///< RLIMIT_MEMLOCK; UINT64_MAX: no limit
  bool lock_exempt = false;          ///< more than the limit was locked all the same
  std::string transparent_huge_pages;
  std::uint64_t reserved_huge_pages = 0;
};

struct FolderFacts {
  std::string folder;
  std::string error;  ///< why it cannot be used; the rest is empty then
  std::string file_system;
  std::uint64_t free_bytes = 0, total_bytes = 0;
  bool direct = false;
  std::string direct_reason;
  std::uint64_t alignment = 0;
  std::string io_path, io_reason;
  std::uint64_t measured_bytes = 0;        ///< size of the temporary file; 0: not measured
  std::string not_measured;                ///< why
  double read = 0, write = 0, duplex = 0;  ///< bytes a second; duplex: both directions in sum
};

struct GpuFacts {
  std::string reason;  ///< why there are none
  struct Gpu {
    AcceleratorFacts facts;
    numa::Near near;
    AcceleratorLinks links;
    std::string error;  ///< why it could not be measured; `links` is empty then
  };
  std::vector<Gpu> gpus;
};

struct ProbeFacts {
  ProcessorFacts processor;
  MemoryFacts memory;
  numa::Nodes numa;
  GpuFacts gpu;
  std::vector<FolderFacts> folders;
  std::vector<std::string> advice;
};

ProcessorFacts probe_processor();
MemoryFacts probe_memory();
GpuFacts probe_gpus();
FolderFacts probe_folder(const std::string& folder);
std::vector<std::string> advice_for(const ProbeFacts& facts);

}  // namespace transload::cli
