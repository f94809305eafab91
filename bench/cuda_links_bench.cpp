// Bandwidth between pinned host memory and a device, each way alone and both at once, and of a copy within the device:
// bench_cuda_links [--mib N] [--repeats N] [--json FILE]. Decimal GB/s; of both ways at once the sum.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>

#include "bench/cuda_timing.h"

namespace {

using namespace transload::bench;

constexpr int kCopies = 4;  // in flight at once, so that no gap between two is measured

/// Two streams, and two buffers of the device and two of the host, which stay until the program ends.
class Links {
 public:
  explicit Links(std::size_t bytes) : bytes_(bytes) {
    for (int i = 0; i < 2; ++i) {
      check(cudaStreamCreateWithFlags(&stream_[i], cudaStreamNonBlocking), "creating a stream");
      check(cudaMalloc(&device_[i], bytes), "allocating device memory");
      check(cudaMemsetAsync(device_[i], 0, bytes, stream_[i]), "filling device memory");
      check(cudaHostAlloc(&host_[i], bytes, cudaHostAllocDefault), "allocating pinned host memory");
      std::memset(host_[i], 1, bytes);
    }
  }
  Links(const Links&) = delete;
  ~Links() {
    for (const cudaStream_t stream : stream_) cudaStreamDestroy(stream);
  }
  void to_device() { copy(device_[0], host_[0], cudaMemcpyHostToDevice, stream_[0]); }
  void to_host() { copy(host_[1], device_[1], cudaMemcpyDeviceToHost, stream_[1]); }
  void both() {
    to_device();
    to_host();
  }
  void within() { copy(device_[1], device_[0], cudaMemcpyDeviceToDevice, stream_[0]); }
  void finish() {
    for (const cudaStream_t stream : stream_) check(cudaStreamSynchronize(stream), "copying");
  }

 private:
  void copy(void* to, const void* from, cudaMemcpyKind kind, cudaStream_t stream) {
    for (int i = 0; i < kCopies; ++i) check(cudaMemcpyAsync(to, from, bytes_, kind, stream), "copying");
  }
  std::size_t bytes_;
  cudaStream_t stream_[2] = {};
  void *device_[2] = {}, *host_[2] = {};
};

/// Bytes a second of `run`, which moves `bytes`: the median of the repeats, after one that does not count. By the
/// host's clock: several streams have no event in common, and what is timed lasts milliseconds.
double rate(Links& links, double bytes, int repeats, void (Links::*run)()) {
  std::vector<double> seconds;
  for (int i = -1; i < repeats; ++i) {
    links.finish();
    const auto begin = std::chrono::steady_clock::now();
    (links.*run)();
    links.finish();
    if (i >= 0) seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  const auto middle = seconds.begin() + repeats / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return bytes / *middle;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t mib = 256;
  int repeats = 9;
  std::string json;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--mib") == 0) mib = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--repeats") == 0) repeats = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--json") == 0) json = argv[i + 1];
  }
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "finding a CUDA device");
  Links links(mib << 20);
  const double bytes = static_cast<double>(mib << 20) * kCopies;
  const double to_device = rate(links, bytes, repeats, &Links::to_device);
  const double to_host = rate(links, bytes, repeats, &Links::to_host);
  const double both = rate(links, 2 * bytes, repeats, &Links::both);
  const double within = rate(links, bytes, repeats, &Links::within);
  std::printf(
      "%s, pinned buffers of %zu MiB: to the device %.2f GB/s, to the host %.2f, both at once %.2f; a copy within "
      "the device reads %.1f GB/s and writes as much\n",
      properties.name, mib, to_device / 1e9, to_host / 1e9, both / 1e9, within / 1e9);
  if (json.empty()) return 0;
  std::FILE* file = std::fopen(json.c_str(), "w");
  if (file != nullptr)
    std::fprintf(file,
                 "{\"gpu\": \"%s\", \"buffer_mib\": %zu, \"host_to_device\": %.0f, \"device_to_host\": %.0f, "
                 "\"both_at_once\": %.0f, \"copy_within_device\": %.0f}\n",
                 properties.name, mib, to_device, to_host, both, within);
  if (file == nullptr || std::fclose(file) != 0) return std::perror(json.c_str()), 1;
}
