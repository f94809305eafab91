// In which order the threads of a block run changes no bit, and every barrier of the kernels is needed: without it some
// order changes bits.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>

#include "kernels/cpu/adamw.h"
#include "kernels/cpu/exact_sum.h"
#include "kernels/cuda/exact_limbs.h"
#include "kernels_cuda/twins.h"

using namespace transload;
using namespace transload::kernels;
using namespace transload::kernels::test;

namespace {

constexpr cudaStream_t kStream = nullptr;

const std::vector<stand_in::Schedule> kSchedules = {{stand_in::Order::forward, 0},
                                                    {stand_in::Order::reversed, 0},
                                                    {stand_in::Order::random, 1},
                                                    {stand_in::Order::random, 2},
                                                    {stand_in::Order::random, 3}};

/// What kernels left behind, as bits.
class Bits {
 public:
  template <class T>
  void keep(const std::vector<T>& v) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(v.data());
    bytes_.insert(bytes_.end(), bytes, bytes + v.size() * sizeof(T));
  }
  bool operator==(const Bits&) const = default;

 private:
  std::vector<unsigned char> bytes_;
};

template <class T>
Bits elementwise_kernels() {
  const std::int64_t n = 2100;
  Bits bits;
  auto a = normal<T>(n, 1), b = normal<T>(n, 2), d = normal<T>(n, 3), y = a, z = a;
  cuda::add(a.data(), b.data(), y.data(), n, kStream);
  bits.keep(y);
  cuda::swiglu_backward(a.data(), b.data(), d.data(), y.data(), z.data(), n, kStream);
  bits.keep(y), bits.keep(z);
  cuda::gelu_backward(Gelu::exact, a.data(), d.data(), y.data(), n, kStream);
  bits.keep(y);
  auto weight = normal<float>(n, 4), m = normal<float>(n, 5), v = normal<float>(n, 6), g = normal<float>(n, 7);
  AdamwRun run;
  run.weight_f32 = weight.data(), run.moment1 = m.data(), run.moment2 = v.data(), run.gradient_f32 = g.data();
  cuda::adamw(run, n, coefficients({1e-3}, 3), 1.0f, kStream);
  bits.keep(weight), bits.keep(m), bits.keep(v);
  const std::vector<std::int32_t> ids = {3, 1, 3, 0, 2, 3};
  std::vector<float> scattered(350 * 4);
  cuda::embedding_scatter(ids.data(), 6, 350, a.data(), 0, 350 * 4, scattered.data(), {}, kStream);
  bits.keep(scattered);
  auto x = normal<T>(6 * 350, 8);
  cuda::embedding_gather(ids.data(), 6, 350, b.data(), 0, 4 * 350, true, x.data(), kStream);
  bits.keep(x);
  return bits;
}

template <class T>
Bits norm_kernels(std::int64_t width) {
  const std::int64_t tokens = 3;
  Bits bits;
  auto x = normal<T>(tokens * width, 1), dy = normal<T>(tokens * width, 2), y = x, dx = x;
  auto weight = normal<float>(width, 3), bias = normal<float>(width, 4), dweight = weight, dbias = weight;
  Scratch scratch(cuda::norm_scratch_bytes(tokens, width));
  cuda::rms_norm(x.data(), weight.data(), y.data(), tokens, width, 1e-5f, kStream);
  bits.keep(y);
  cuda::layer_norm(x.data(), weight.data(), bias.data(), y.data(), tokens, width, 1e-5f, kStream);
  bits.keep(y);
  cuda::rms_norm_backward(x.data(), weight.data(), dy.data(), dx.data(), false, dweight.data(), tokens, width, 1e-5f,
                          scratch.data(), kStream);
  bits.keep(dx), bits.keep(dweight);
  cuda::layer_norm_backward(x.data(), weight.data(), dy.data(), dx.data(), true, dweight.data(), dbias.data(), tokens,
                            width, 1e-5f, scratch.data(), kStream);
  bits.keep(dx), bits.keep(dweight), bits.keep(dbias);
  cuda::column_sum(dy.data(), width, dbias.data(), tokens, width, scratch.data(), kStream);
  bits.keep(dbias);
  return bits;
}

template <class T>
Bits attention_kernels() {
  const std::int64_t rows = 6, length = 700;
  const cuda::ScorePanel panel{2, 3, 600, length, length, length, 0.5f};
  Bits bits;
  auto scores = normal<float>(rows * length, 1), dp = normal<float>(rows * length, 2);
  auto lse = normal<float>(2 * length, 3), delta = normal<float>(2 * length, 4);
  std::vector<T> p(scores.size()), ds(scores.size());
  cuda::causal_softmax(panel, scores.data(), p.data(), lse.data(), kStream);
  bits.keep(p), bits.keep(lse);
  cuda::causal_softmax_backward(panel, scores.data(), dp.data(), lse.data(), delta.data(), p.data(), ds.data(),
                                kStream);
  bits.keep(p), bits.keep(ds);
  auto out = normal<T>(5 * 4 * 72, 5);
  const auto dout = normal<T>(5 * 4 * 72, 6);
  std::vector<float> dots(20);
  cuda::attention_delta(out.data(), dout.data(), 4 * 72, 1, 5, 4, 72, dots.data(), kStream);
  bits.keep(dots);
  const auto cos = normal<float>(5 * 36, 7), sin = normal<float>(5 * 36, 8);
  cuda::rotary(out.data(), 4 * 72, 5, 5, 4, 72, cos.data(), sin.data(), false, kStream);
  bits.keep(out);
  return bits;
}

template <class T>
Bits loss_kernels() {
  const std::int64_t tokens = 70, width = 520;
  Bits bits;
  const auto logits = normal<float>(tokens * width, 1);
  std::vector<float> max(70), sum(70), target(70);
  const LossRows rows{max.data(), sum.data(), target.data()};
  const std::vector<std::int32_t> targets(70, 5);
  cuda::loss_reset(rows, tokens, kStream);
  cuda::loss_panel(logits.data(), width, tokens, 0, width, targets.data(), rows, kStream);
  std::vector<double> loss(1);
  cuda::loss_sum(rows, tokens, loss.data(), kStream);
  std::vector<T> gradient(logits.size());
  cuda::loss_panel_backward(logits.data(), width, tokens, 0, width, targets.data(), rows, 0.5f, gradient.data(),
                            kStream);
  bits.keep(max), bits.keep(sum), bits.keep(target), bits.keep(loss), bits.keep(gradient);
  return bits;
}

template <class T>
Bits square_kernels() {
  const auto g = normal<T>(5000, 1);
  std::vector<double> sums(40);
  std::uint32_t flag = 0;
  cuda::sum_squares(g.data(), 5000, sums.data(), &flag, kStream);
  Bits bits;
  bits.keep(sums);
  return bits;
}

Bits limb_kernels() {
  std::vector<double> sums(600);
  for (std::size_t i = 0; i < sums.size(); ++i)
    sums[i] = std::ldexp(1.0 + static_cast<double>(i), static_cast<int>(i % 90));
  std::vector<unsigned long long> limbs(ExactSum::kLimbs);
  cuda::add_to_limbs(sums.data(), 600, limbs.data(), kStream);
  Bits bits;
  bits.keep(limbs);
  return bits;
}

struct Work {
  const char* name;
  std::function<Bits()> run;
};
const std::vector<Work> kWork = {{"elementwise, fp32", elementwise_kernels<float>},
                                 {"elementwise, bf16", elementwise_kernels<bf16>},
                                 {"norms, fp32", [] { return norm_kernels<float>(2050); }},
                                 {"norms, bf16", [] { return norm_kernels<bf16>(520); }},
                                 {"attention, fp32", attention_kernels<float>},
                                 {"attention, bf16", attention_kernels<bf16>},
                                 {"loss, fp32", loss_kernels<float>},
                                 {"loss, bf16", loss_kernels<bf16>},
                                 {"squares, fp32", square_kernels<float>},
                                 {"squares, bf16", square_kernels<bf16>},
                                 {"limbs", limb_kernels}};

/// As it was, when the test ends.
struct Ordinary {
  ~Ordinary() {
    stand_in::set_schedule({});
    stand_in::skip_site(-1);
  }
};

/// The barriers that stand in the kernels' sources, as "file:line".
std::vector<std::string> barriers_in_sources() {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(TRANSLOAD_SOURCE_DIR "/kernels/cuda")) {
    std::ifstream file(entry.path());
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      const auto comment = line.find("//");
      if (line.substr(0, comment).find("__sync") == std::string::npos) continue;
      found.push_back(entry.path().filename().string() + ":" + std::to_string(number));
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool removal_is_found(int site, const std::vector<Bits>& want) {
  stand_in::skip_site(site);
  for (std::size_t w = 0; w < kWork.size(); ++w) {
    for (const auto& schedule : kSchedules) {
      stand_in::set_schedule(schedule);
      try {
        if (!(kWork[w].run() == want[w])) return true;
      } catch (const stand_in::Failure&) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

TEST_CASE("the order in which threads run changes no bit") {
  const Ordinary afterwards;
  for (const auto& [name, run] : kWork) {
    INFO(name);
    stand_in::set_schedule(kSchedules[0]);
    const Bits want = run();
    for (const auto& schedule : kSchedules) {
      stand_in::set_schedule(schedule);
      REQUIRE(run() == want);
    }
  }
}

TEST_CASE("every barrier of the kernels is needed") {
  const Ordinary afterwards;
  std::vector<Bits> want;
  for (const auto& work : kWork) want.push_back(work.run());
  const auto sites = stand_in::sites();
  std::vector<std::string> reached;
  for (std::size_t i = 0; i < sites.size(); ++i) {
    const std::string place =
        std::filesystem::path(sites[i].file).filename().string() + ":" + std::to_string(sites[i].line);
    if (sites[i].file.find("kernels/cuda/") == std::string::npos) continue;
    reached.push_back(place);
    INFO("without the barrier at " << place << " nothing changes");
    REQUIRE(removal_is_found(static_cast<int>(i), want));
  }
  std::sort(reached.begin(), reached.end());
  REQUIRE(reached == barriers_in_sources());
}
