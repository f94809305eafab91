// Products in tiles under oneTBB, beside oneDNN's one big product on as many threads of its own: the limit. Rounds are
// interleaved; figures are medians over rounds.
//   bench_products [threads] [tokens] [rounds]                               weights of llama-350m, fp32 and bf16
//   bench_products THREADS TOKENS ROUNDS fp32|bf16 ROWSxCOLUMNSxCOUNT ...    a model's own weights, COUNT of each
// The second form ends with oneDNN's best rate of each form of product over all weights: all FLOPs / all time, each
// product taken at its faster way, whole or in tiles (the tiles are oneDNN's too).
#include <fmt/format.h>
#include <omp.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/products.h"

namespace {

using namespace transload;
using Clock = std::chrono::steady_clock;
using dnnl::memory;

struct Weight {
  std::string name;
  std::int64_t rows, columns, count = 1;
};
const std::vector<Weight> kWeights = {{"attention", 1024, 1024}, {"gate, up", 2816, 1024}, {"down", 1024, 2816}};
enum class Form { nt, nn, tn };
constexpr const char* kForms[] = {"nt (forward)", "nn (to inputs)", "tn (to weights)"};

double seconds(const std::function<void()>& fn) {
  const auto start = Clock::now();
  fn();
  return std::chrono::duration<double>(Clock::now() - start).count();
}
double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

/// A buffer of zeros but for small numbers here and there: denormals and infinities never arise.
std::vector<std::byte> values(std::int64_t n, Dtype dtype) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(n) * size_of(dtype) + 64);
  for (std::int64_t i = 0; i < n; ++i) {
    const float v = static_cast<float>(i * 7919 % 1000) / 1000.0f - 0.5f;
    if (dtype == Dtype::f32) reinterpret_cast<float*>(bytes.data())[i] = v;
    if (dtype == Dtype::bf16) reinterpret_cast<bf16*>(bytes.data())[i] = round_to_bf16(v);
  }
  return bytes;
}

/// One whole product by oneDNN, result in fp32.
class WholeProduct {
 public:
  WholeProduct(Form form, std::int64_t tokens, const Weight& w, Dtype dtype, void* x, void* y, void* weight) {
    const auto type = dtype == Dtype::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    const memory::dims row_major_x{w.columns, 1}, row_major_y{w.rows, 1};
    const memory::desc xs({tokens, w.columns}, type, row_major_x), xt({w.columns, tokens}, type, {1, w.columns});
    const memory::desc ws({w.rows, w.columns}, type, row_major_x), wt({w.columns, w.rows}, type, {1, w.columns});
    const memory::desc ys({tokens, w.rows}, type, row_major_y), yt({w.rows, tokens}, type, {1, w.rows});
    const auto f32 = memory::data_type::f32;
    if (form == Form::nt) create(xs, x, wt, weight, memory::desc({tokens, w.rows}, f32, row_major_y));
    if (form == Form::nn) create(ys, y, ws, weight, memory::desc({tokens, w.columns}, f32, row_major_x));
    if (form == Form::tn) create(yt, y, xs, x, memory::desc({w.rows, w.columns}, f32, row_major_x));
  }
  void run() {
    matmul_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  void create(const memory::desc& a, void* pa, const memory::desc& b, void* pb, const memory::desc& c) {
    matmul_ = dnnl::matmul(dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), engine_));
    arguments_ = {{DNNL_ARG_SRC, memory(a, engine_, pa)},
                  {DNNL_ARG_WEIGHTS, memory(b, engine_, pb)},
                  {DNNL_ARG_DST, memory(c, engine_)}};
  }
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul matmul_;
  std::unordered_map<int, memory> arguments_;
};

/// The same product as the trainer makes it: one call for each panel of the weight.
void run_panels(kernels::Products& products, Form form, std::int64_t tokens, const Weight& w, Dtype dtype, std::byte* x,
                std::byte* y, std::byte* weight, float* result, std::byte* scratch) {
  const std::int64_t height = kernels::panel_rows(w.rows, w.columns);
  for (std::int64_t row = 0; row < w.rows; row += height) {
    const std::int64_t h = std::min(height, w.rows - row);
    std::byte* panel = weight + static_cast<std::uint64_t>(row * w.columns) * size_of(dtype);
    std::byte* part = y + static_cast<std::uint64_t>(row) * size_of(dtype);
    if (form == Form::nt) products.nt(x, w.columns, panel, nullptr, part, w.rows, tokens, h, w.columns, scratch);
    if (form == Form::nn) {
      products.nn(part, w.rows, panel, result, w.columns, tokens, h, w.columns, row > 0, scratch);
    }
    if (form == Form::tn) {
      products.tn(part, w.rows, x, w.columns, result + row * w.columns, tokens, h, w.columns, scratch);
    }
  }
}

/// Prints a row; returns the seconds of the faster way.
double compare(Form form, std::int64_t tokens, const Weight& w, Dtype dtype, Dtype limit_dtype, int threads,
               int rounds) {
  auto x = values(tokens * w.columns, dtype), y = values(tokens * w.rows, dtype),
       weight = values(w.rows * w.columns, dtype);
  auto wide_x = values(tokens * w.columns, limit_dtype), wide_y = values(tokens * w.rows, limit_dtype),
       wide_weight = values(w.rows * w.columns, limit_dtype);
  std::vector<float> result(static_cast<std::size_t>(std::max({tokens, w.rows}) * w.columns));
  kernels::Products products(dtype);
  std::vector<std::byte> room(products.scratch_bytes(tokens, kernels::panel_rows(w.rows, w.columns), w.columns) + 64);
  std::byte* scratch = room.data() + (64 - reinterpret_cast<std::uintptr_t>(room.data()) % 64) % 64;
  omp_set_num_threads(threads);
  WholeProduct whole(form, tokens, w, limit_dtype, wide_x.data(), wide_y.data(), wide_weight.data());
  std::vector<double> ours, limit;
  const auto panels = [&] {
    run_panels(products, form, tokens, w, dtype, x.data(), y.data(), weight.data(), result.data(), scratch);
  };
  for (int r = 0; r <= rounds; ++r) {
    const double a = seconds(panels);
    const double b = seconds([&] { whole.run(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // libgomp's threads spin for a while: let them sleep
    if (r == 0) continue;                                        // primitives were created
    ours.push_back(a);
    limit.push_back(b);
  }
  const double flops = 2.0 * static_cast<double>(tokens * w.rows * w.columns);
  fmt::print("{:<5} {:<16} {:<10} {:5} x {:4} x {:4}  ours {:6.0f} GFLOP/s   limit {:6.0f} ({})   {:.2f}\n",
             name_of(dtype), kForms[static_cast<int>(form)], w.name, tokens, w.rows, w.columns,
             flops / median(ours) / 1e9, flops / median(limit) / 1e9, name_of(limit_dtype),
             median(limit) / median(ours));
  return std::min(median(ours), median(limit));
}

/// All forms of all weights of a dtype; returns oneDNN's best FLOP/s by form.
std::array<double, 3> compare_all(const std::vector<Weight>& weights, Dtype dtype, std::int64_t tokens, int threads,
                                  int rounds) {
  const std::string facts = kernels::Products(dtype).facts();
  fmt::print("{} threads, {}\n", threads, facts);
  // The limit of widened bf16 is fp32's: the processor has nothing better.
  const Dtype limit = facts.find("widened") == std::string::npos ? dtype : Dtype::f32;
  std::array<double, 3> took{};
  double flops = 0;
  for (const Weight& w : weights) {
    flops += 2.0 * static_cast<double>(tokens * w.rows * w.columns * w.count);
    for (const Form form : {Form::nt, Form::nn, Form::tn}) {
      const double one = compare(form, tokens, w, dtype, limit, threads, rounds);
      took[static_cast<std::size_t>(form)] += static_cast<double>(w.count) * one;
    }
  }
  for (double& t : took) t = flops / t;
  return took;
}

std::vector<Weight> parse_weights(int count, char** arguments) {
  std::vector<Weight> weights;
  for (int i = 0; i < count; ++i) {
    Weight w{.name = arguments[i], .rows = 0, .columns = 0};
    if (std::sscanf(arguments[i], "%ldx%ldx%ld", &w.rows, &w.columns, &w.count) != 3) {
      fmt::print(stderr, "{} is not ROWSxCOLUMNSxCOUNT\n", arguments[i]);
      std::exit(2);
    }
    weights.push_back(w);
  }
  return weights;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::int64_t tokens = argc > 2 ? std::atoll(argv[2]) : 1024;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 9;
  const tbb::global_control control(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(threads));
  if (argc > 5) {
    const Dtype dtype = std::string(argv[4]) == "bf16" ? Dtype::bf16 : Dtype::f32;
    const auto best = compare_all(parse_weights(argc - 5, argv + 5), dtype, tokens, threads, rounds);
    fmt::print("best of oneDNN, weighted: nt {:.1f} nn {:.1f} tn {:.1f} GFLOP/s\n", best[0] / 1e9, best[1] / 1e9,
               best[2] / 1e9);
    return 0;
  }
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) compare_all(kWeights, dtype, tokens, threads, rounds);
  return 0;
}
