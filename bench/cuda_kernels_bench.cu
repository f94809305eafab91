// Memory-bound CUDA kernels as a fraction of what a copy within device memory reaches on the same device in the same
// run: bench_cuda_kernels [--elements N] [--repeats N] [--json FILE]. Bytes are what a kernel must move at least once.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "bench/cuda_timing.h"
#include "kernels/cuda/kernels.h"

namespace {

using namespace transload;
using namespace transload::bench;
using namespace transload::kernels;

struct Result {
  std::string name;
  double bytes, seconds;
  double rate() const { return bytes / seconds; }
};

class Bench {
 public:
  explicit Bench(int repeats) : repeats_(repeats) {}
  cudaStream_t stream() const { return timer_.stream(); }

  /// `count` elements of zeros that stay until the program ends.
  template <class T>
  T* array(std::int64_t count) {
    void* memory = nullptr;
    const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
    check(cudaMalloc(&memory, bytes), "allocating device memory");
    check(cudaMemsetAsync(memory, 0, bytes, stream()), "filling device memory");
    return static_cast<T*>(memory);
  }

  void measure(const std::string& name, double bytes, const std::function<void()>& run) {
    results_.push_back({name, bytes, timer_.median_seconds(repeats_, name.c_str(), run)});
    const Result& r = results_.back();
    std::printf("%-26s %8.1f GB/s  %5.3f of the copy\n", name.c_str(), r.rate() / 1e9, r.rate() / results_[0].rate());
  }

  void write_json(const std::string& path, const std::string& device, std::int64_t elements) const {
    std::FILE* file = std::fopen(path.c_str(), "w");
    if (file == nullptr) {
      std::perror(path.c_str());
      std::exit(1);
    }
    std::fprintf(file, "{\"device\": \"%s\", \"elements\": %lld, \"repeats\": %d, \"kernels\": [", device.c_str(),
                 static_cast<long long>(elements), repeats_);
    for (std::size_t i = 0; i < results_.size(); ++i) {
      const Result& r = results_[i];
      std::fprintf(file, "%s\n  {\"name\": \"%s\", \"bytes\": %.0f, \"seconds\": %.9f, \"fraction_of_copy\": %.4f}",
                   i == 0 ? "" : ",", r.name.c_str(), r.bytes, r.seconds, r.rate() / results_[0].rate());
    }
    std::fprintf(file, "\n]}\n");
    if (std::fclose(file) != 0) std::perror(path.c_str());
  }

 private:
  int repeats_;
  StreamTimer timer_;
  std::vector<Result> results_;
};

void measure_optimizer(Bench& bench, std::int64_t n) {
  const auto size = static_cast<double>(n);
  const AdamwCoefficients c{0.1f, 0.95f, 0.05f, 0.99999f, 3e-4f, 1.0f, 1e-8f};
  AdamwRun run;
  run.weight = bench.array<bf16>(n), run.residue = bench.array<std::int16_t>(n);
  run.moment1 = bench.array<float>(n), run.moment2 = bench.array<float>(n);
  bf16* const gradient = bench.array<bf16>(n);
  run.gradient = gradient;
  float* const values = bench.array<float>(n);
  double* const sums = bench.array<double>(cuda::run_count(n));
  auto* const flag = bench.array<std::uint32_t>(1);
  const auto s = bench.stream();
  bench.measure("copy", 8 * size, [&] {
    check(cudaMemcpyAsync(run.moment2, run.moment1, static_cast<std::size_t>(4 * n), cudaMemcpyDeviceToDevice, s),
          "copying");
  });
  bench.measure("adamw", 26 * size, [&] { cuda::adamw(run, n, c, 1.0f, s); });
  bench.measure("store_or_add", 12 * size, [&] { cuda::store_or_add(run.moment1, n, values, true, s); });
  bench.measure("round_sum", 10 * size, [&] { cuda::round_sum(run.moment1, gradient, n, values, s); });
  bench.measure("sum_squares", 2 * size, [&] { cuda::sum_squares(gradient, n, sums, flag, s); });
  bench.measure("narrow", 6 * size, [&] { cuda::narrow(values, gradient, n, s); });
}

void measure_layers(Bench& bench, std::int64_t n) {
  const std::int64_t width = 4096, tokens = n / width;
  const auto size = static_cast<double>(tokens * width);
  bf16 *const x = bench.array<bf16>(n), *const y = bench.array<bf16>(n), *const dy = bench.array<bf16>(n);
  float* const scores = bench.array<float>(n);
  float *const weight = bench.array<float>(width), *const rows = bench.array<float>(3 * tokens);
  float* const lse = bench.array<float>(n);
  auto* const ids = bench.array<std::int32_t>(tokens);
  auto* const scratch = bench.array<std::byte>(static_cast<std::int64_t>(cuda::norm_scratch_bytes(tokens, width)));
  const auto s = bench.stream();
  const LossRows loss{rows, rows + tokens, rows + 2 * tokens};
  bench.measure("rms_norm", 4 * size, [&] { cuda::rms_norm(x, weight, y, tokens, width, 1e-5f, s); });
  bench.measure("rms_norm_backward", 6 * size,
                [&] { cuda::rms_norm_backward(x, weight, dy, y, false, weight, tokens, width, 1e-5f, scratch, s); });
  bench.measure("column_sum", 2 * size, [&] { cuda::column_sum(x, width, weight, tokens, width, scratch, s); });
  bench.measure("swiglu", 6 * size, [&] { cuda::swiglu(x, dy, y, tokens * width, s); });
  bench.measure("swiglu_backward", 10 * size, [&] { cuda::swiglu_backward(x, dy, y, x, dy, tokens * width, s); });
  bench.measure("gelu, exact", 4 * size, [&] { cuda::gelu(Gelu::exact, x, y, tokens * width, s); });
  bench.measure("embedding_gather", 4 * size, [&] {
    cuda::embedding_gather(ids, tokens, width, dy, 0, static_cast<std::uint64_t>(width), false, y, s);
  });
  // Last queries of as many heads as there are rows: each sees all its keys.
  const cuda::ScorePanel panel{tokens, 1, width - 1, width, width, width, 0.1f};
  bench.measure("causal_softmax", 6 * size, [&] { cuda::causal_softmax(panel, scores, y, lse, s); });
  bench.measure("loss_panel", 4 * size, [&] { cuda::loss_panel(scores, width, tokens, 0, width, ids, loss, s); });
  bench.measure("loss_panel_backward", 6 * size,
                [&] { cuda::loss_panel_backward(scores, width, tokens, 0, width, ids, loss, 1.0f, y, s); });
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t elements = 1 << 26;
  int repeats = 20;
  std::string json;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--elements") == 0) elements = std::atoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--repeats") == 0) repeats = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--json") == 0) json = argv[i + 1];
  }
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "finding a CUDA device");
  std::printf("%s, %lld elements\n", properties.name, static_cast<long long>(elements));
  Bench bench(repeats);
  measure_optimizer(bench, elements);
  measure_layers(bench, elements);
  if (!json.empty()) bench.write_json(json, properties.name, elements);
}
