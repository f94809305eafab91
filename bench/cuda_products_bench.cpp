// Products of one layer of a transformer by cuBLASLt, beside the device's peak: bench_cuda_products [--tokens N]
// [--hidden N] [--intermediate N] [--repeats N] [--json FILE]; the sizes of llama-7b unless given.
//
// The peak is computed: multiprocessors x highest clock x operations per multiprocessor and cycle of the compute
// capability (NVIDIA's architecture papers; dense bf16 on tensor cores with fp32 accumulation, fp32 without them). For
// another capability it is unknown, and no fraction is given. A device seldom holds its highest clock under load.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "base/dtype.h"
#include "bench/cuda_timing.h"
#include "kernels/cuda/products.h"

namespace {

using namespace transload;
using namespace transload::bench;
using kernels::cuda::Products;

struct Peak {
  int major, minor;
  double bf16, fp32;  // operations per multiprocessor and cycle
};
constexpr Peak kPeaks[] = {{8, 0, 2048, 128}, {9, 0, 4096, 256}, {10, 0, 8192, 256}};

struct Machine {
  cudaDeviceProp properties{};
  double clock_hz = 0;

  /// FLOP/s; 0: not known.
  double peak(Dtype dtype) const {
    for (const Peak& p : kPeaks)
      if (p.major == properties.major && p.minor == properties.minor)
        return (dtype == Dtype::bf16 ? p.bf16 : p.fp32) * properties.multiProcessorCount * clock_hz;
    return 0;
  }
};

Machine find_machine() {
  Machine machine;
  int khz = 0;
  check(cudaGetDeviceProperties(&machine.properties, 0), "finding a CUDA device");
  check(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0), "asking for the device's clock");
  machine.clock_hz = 1e3 * khz;
  return machine;
}

struct Sizes {
  std::int64_t tokens = 4096, hidden = 4096, intermediate = 11008;
  int repeats = 10;
};

void* device_memory(std::uint64_t bytes, cudaStream_t stream) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes), "allocating device memory");
  check(cudaMemsetAsync(memory, 0x3C, bytes, stream), "filling device memory");  // 0.0115 in both types
  return memory;
}

/// Operands and results of every product in here, until the program ends.
class LayerProducts {
 public:
  LayerProducts(const Machine& machine, const Sizes& sizes)
      : machine_(machine),
        sizes_(sizes),
        products_(machine.properties.name, kernels::cuda::product_workspace_bytes(machine.properties.major)) {
    const auto widest = std::max(sizes.hidden, sizes.intermediate);
    const auto bytes = static_cast<std::uint64_t>(widest * std::max(sizes.tokens, widest)) * sizeof(float);
    for (void*& memory : memory_) memory = device_memory(bytes, timer_.stream());
    const std::uint64_t scratch = kernels::cuda::product_scratch_bytes(sizes.tokens, widest);
    scratch_ = static_cast<std::byte*>(device_memory(scratch, timer_.stream()));
  }

  nlohmann::json measure(Dtype dtype) {
    nlohmann::json found = nlohmann::json::array();
    const auto all = [&](const char* weight, std::int64_t rows, std::int64_t columns) {
      for (const char* kind : {"forward", "backward to inputs", "backward to weights"})
        found.push_back(one(dtype, kind, weight, rows, columns));
    };
    all("attention", sizes_.hidden, sizes_.hidden);
    all("gate and up", sizes_.intermediate, sizes_.hidden);
    all("down", sizes_.hidden, sizes_.intermediate);
    return found;
  }

 private:
  void run(Dtype dtype, const std::string& kind, std::int64_t h, std::int64_t k) {
    auto* const c = static_cast<float*>(memory_[2]);
    if (kind == "forward")
      products_.nt(dtype, memory_[0], k, memory_[1], nullptr, c, h, sizes_.tokens, h, k, scratch_, timer_.stream());
    else if (kind == "backward to inputs")
      products_.nn(dtype, memory_[0], h, memory_[1], c, k, sizes_.tokens, h, k, false, scratch_, timer_.stream());
    else
      products_.tn(dtype, memory_[0], h, memory_[1], k, c, sizes_.tokens, h, k, scratch_, timer_.stream());
  }
  nlohmann::json one(Dtype dtype, const std::string& kind, const char* weight, std::int64_t h, std::int64_t k) {
    const double seconds = timer_.median_seconds(sizes_.repeats, kind.c_str(), [&] { run(dtype, kind, h, k); });
    const double flops = 2.0 * static_cast<double>(sizes_.tokens) * static_cast<double>(h) * static_cast<double>(k);
    const double rate = flops / seconds, peak = machine_.peak(dtype);
    std::printf("%s %-11s %-20s %8.2f TFLOP/s", dtype == Dtype::bf16 ? "bf16" : "fp32", weight, kind.c_str(),
                rate / 1e12);
    if (peak > 0) std::printf("  %5.3f of the peak", rate / peak);
    std::printf("\n");
    return {{"weight", weight},
            {"product", kind},
            {"tokens", sizes_.tokens},
            {"rows", h},
            {"columns", k},
            {"dtype", dtype == Dtype::bf16 ? "bf16" : "fp32"},
            {"seconds", seconds},
            {"flop_per_s", rate},
            {"fraction_of_peak", peak > 0 ? nlohmann::json(rate / peak) : nlohmann::json(nullptr)}};
  }

  const Machine& machine_;
  const Sizes sizes_;
  StreamTimer timer_;
  Products products_;
  void* memory_[3] = {};
  std::byte* scratch_ = nullptr;
};

nlohmann::json peak_json(const Machine& machine, Dtype dtype) {
  const double peak = machine.peak(dtype);
  return peak > 0 ? nlohmann::json(peak) : nlohmann::json("unknown");
}

int measure(const Sizes& sizes, const std::string& to) {
  const Machine machine = find_machine();
  const cudaDeviceProp& p = machine.properties;
  LayerProducts layer(machine, sizes);
  nlohmann::json products = layer.measure(Dtype::bf16);
  for (nlohmann::json& product : layer.measure(Dtype::f32)) products.push_back(product);
  const nlohmann::json found = {
      {"gpu", p.name},
      {"compute_capability", std::to_string(p.major) + "." + std::to_string(p.minor)},
      {"multiprocessors", p.multiProcessorCount},
      {"highest_clock_hz", machine.clock_hz},
      {"peak_flop_per_s", {{"bf16", peak_json(machine, Dtype::bf16)}, {"fp32", peak_json(machine, Dtype::f32)}}},
      {"peak_is", "multiprocessors x highest clock x operations per multiprocessor and cycle of the capability"},
      {"products", products}};
  if (to.empty()) return 0;
  std::FILE* file = std::fopen(to.c_str(), "w");
  if (file != nullptr) std::fprintf(file, "%s\n", found.dump(1).c_str());
  if (file == nullptr || std::fclose(file) != 0) return std::perror(to.c_str()), 1;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Sizes sizes;
  std::string json;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--tokens") == 0) sizes.tokens = std::atoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--hidden") == 0) sizes.hidden = std::atoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--intermediate") == 0) sizes.intermediate = std::atoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--repeats") == 0) sizes.repeats = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--json") == 0) json = argv[i + 1];
  }
  try {
    return measure(sizes, json);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_cuda_products: %s\n", error.what());
    return 1;
  }
}
