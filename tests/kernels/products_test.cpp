#include "kernels/cpu/products.h"

#include <sys/time.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <limits>

#include "kernels/arrays.h"
#include "kernels/cpu/tile.h"

using namespace transload;
using namespace transload::kernels;
using namespace transload::kernels::test;

namespace {

enum class Form { nt, nn, tn };

/// Σ and Σ|·| of a product of double arrays: result [rows, columns], inner dimension `inner`.
struct Reference {
  std::vector<double> sum, magnitude;
};
template <class A, class B>
Reference reference(std::int64_t rows, std::int64_t columns, std::int64_t inner, const A& a, const B& b) {
  Reference r;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      double sum = 0, magnitude = 0;
      for (std::int64_t p = 0; p < inner; ++p) {
        const double v = a(i, p) * b(p, j);
        sum += v;
        magnitude += std::abs(v);
      }
      r.sum.push_back(sum);
      r.magnitude.push_back(magnitude);
    }
  }
  return r;
}

/// One product with padded rows; inputs of T, arrays at `shift` elements from where they would be.
template <class T>
struct Case {
  Form form;
  std::int64_t T_, h, K;
  std::int64_t pad = 3;
  std::size_t shift = 0;

  std::int64_t lda() const { return (form == Form::nt ? K : h) + pad; }
  std::int64_t ldb() const { return form == Form::tn ? K + pad : K; }
  std::int64_t ldc() const { return (form == Form::nt ? h : K) + pad; }
  std::vector<T> a() const { return normal<T>(T_ * lda(), 1); }
  std::vector<T> b() const { return normal<T>((form == Form::tn ? T_ : h) * ldb(), 2); }
};

template <class V>
std::vector<V> shifted(const std::vector<V>& v, std::size_t shift) {
  std::vector<V> s(shift);
  s.insert(s.end(), v.begin(), v.end());
  return s;
}

/// C of nn and nt_f32 or G of tn, compact.
template <class T>
std::vector<float> run_f32(const Case<T>& c, bool accumulate = false) {
  Products products(kDtype<T>);
  Scratch scratch(products.scratch_bytes(c.T_, c.h, c.K));
  const auto a = shifted(c.a(), c.shift), b = shifted(c.b(), c.shift);
  const std::int64_t rows = c.form == Form::tn ? c.h : c.T_, columns = c.form == Form::nt ? c.h : c.K;
  const std::int64_t ldc = c.form == Form::tn ? columns : c.ldc();
  std::vector<float> out(c.shift + static_cast<std::size_t>(rows * ldc), accumulate ? 1.0f : NAN);
  const T *pa = a.data() + c.shift, *pb = b.data() + c.shift;
  float* pc = out.data() + c.shift;
  if (c.form == Form::nt) products.nt_f32(pa, c.lda(), pb, pc, ldc, c.T_, c.h, c.K, scratch.data());
  if (c.form == Form::nn) products.nn(pa, c.lda(), pb, pc, ldc, c.T_, c.h, c.K, accumulate, scratch.data());
  if (c.form == Form::tn) products.tn(pa, c.lda(), pb, c.ldb(), pc, c.T_, c.h, c.K, scratch.data());
  std::vector<float> compact;
  for (std::int64_t r = 0; r < rows; ++r) compact.insert(compact.end(), pc + r * ldc, pc + r * ldc + columns);
  return compact;
}

template <class T>
Reference want(const Case<T>& c) {
  const auto a = as_double(c.a()), b = as_double(c.b());
  const auto at = [](const std::vector<double>& v, std::int64_t ld) {
    return [&v, ld](std::int64_t r, std::int64_t col) { return v[static_cast<std::size_t>(r * ld + col)]; };
  };
  const auto A = at(a, c.lda()), B = at(b, c.ldb());
  if (c.form == Form::nt) {
    return reference(c.T_, c.h, c.K, A, [&](std::int64_t p, std::int64_t j) { return B(j, p); });
  }
  if (c.form == Form::nn) return reference(c.T_, c.K, c.h, A, B);
  return reference(
      c.h, c.K, c.T_, [&](std::int64_t i, std::int64_t p) { return A(p, i); }, B);
}

// A sum of n products in fp32, in any order: within n roundings of the sum of magnitudes; half of that is plenty.
template <class T>
void require_product(const std::vector<T>& got, const Reference& r, std::int64_t inner, double offset = 0) {
  REQUIRE(got.size() == r.sum.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double sum = r.sum[i] + offset;
    const double tolerance = (static_cast<double>(inner) / 2 + 2) * 0x1p-24 * (r.magnitude[i] + std::abs(offset)) +
                             (std::is_same_v<T, bf16> ? 0x1p-8 * std::abs(sum) : 0.0);
    INFO("element " << i << ": got " << to_float(got[i]) << ", want " << sum << " within " << tolerance);
    if (!(std::abs(to_float(got[i]) - sum) <= tolerance)) FAIL();
  }
}

const std::vector<std::array<std::int64_t, 3>> kShapes = {
    {1, 1, 1}, {1, 33, 7}, {2, 32, 64}, {5, 40, 31}, {63, 96, 65}, {257, 300, 48}, {256, 256, 128}, {300, 64, 257}};

}  // namespace

TEST_CASE("panel heights are a function of the weight's shape") {
  CHECK(panel_rows(4096, 1024) == 1024);
  CHECK(panel_rows(1000, 1024) == 1000);
  CHECK(panel_rows(32000, 4096) == 256);
  CHECK(panel_rows(1024, 2816) == 352);
  CHECK(panel_rows(50257, 1 << 20) == 32);
  CHECK(panel_rows(8, 1 << 21) == 8);
  CHECK(panel_rows(1, 1) == 1);
}

TEMPLATE_TEST_CASE("products with an fp32 result agree with a double reference", "", float, bf16) {
  for (const Form form : {Form::nt, Form::nn, Form::tn}) {
    for (const auto& [T, h, K] : kShapes) {
      const Case<TestType> c{form, T, h, K};
      INFO("form " << static_cast<int>(form) << " " << T << " " << h << " " << K);
      require_product(run_f32(c), want(c), form == Form::nt ? K : form == Form::nn ? h : T);
    }
  }
}

TEMPLATE_TEST_CASE("nn adds to what is there", "", float, bf16) {
  for (const auto& [T, h, K] : kShapes) {
    const Case<TestType> c{Form::nn, T, h, K};
    require_product(run_f32(c, true), want(c), h, 1.0);
  }
}

TEMPLATE_TEST_CASE("nt adds the bias and rounds once", "", float, bf16) {
  for (const bool with_bias : {false, true}) {
    for (const auto& [T, h, K] : kShapes) {
      const Case<TestType> c{Form::nt, T, h, K};
      Products products(kDtype<TestType>);
      Scratch scratch(products.scratch_bytes(T, h, K));
      const auto a = c.a(), b = c.b();
      const std::vector<float> bias(static_cast<std::size_t>(h), 0.75f);
      std::vector<TestType> out(static_cast<std::size_t>(T * c.ldc()), rounded(7.0f, TestType()));
      products.nt(a.data(), c.lda(), b.data(), with_bias ? bias.data() : nullptr, out.data(), c.ldc(), T, h, K,
                  scratch.data());
      std::vector<TestType> compact;
      for (std::int64_t r = 0; r < T; ++r) {
        const auto row = out.begin() + r * c.ldc();
        compact.insert(compact.end(), row, row + h);
        for (std::int64_t i = h; i < c.ldc(); ++i) REQUIRE(to_float(row[i]) == 7.0f);
      }
      require_product(compact, want(c), K, with_bias ? 0.75 : 0.0);
    }
  }
}

TEMPLATE_TEST_CASE("a NaN reaches the rows and columns that it belongs to", "", float, bf16) {
  Products products(kDtype<TestType>);
  const std::int64_t T = 40, h = 70, K = 50;
  Scratch scratch(products.scratch_bytes(T, h, K));
  auto a = normal<TestType>(T * K, 1);
  const auto b = normal<TestType>(h * K, 2);
  a[static_cast<std::size_t>(17 * K + 3)] = rounded(std::numeric_limits<float>::quiet_NaN(), TestType());
  std::vector<TestType> c(static_cast<std::size_t>(T * h));
  products.nt(a.data(), K, b.data(), nullptr, c.data(), h, T, h, K, scratch.data());
  for (std::int64_t i = 0; i < T * h; ++i) {
    REQUIRE(std::isnan(to_float(c[static_cast<std::size_t>(i)])) == (i / h == 17));
  }
}

TEMPLATE_TEST_CASE("the bits of products depend neither on threads nor on addresses", "", float, bf16) {
  for (const Form form : {Form::nt, Form::nn, Form::tn}) {
    Case<TestType> c{form, 515, 320, 290};
    require_same_on_any_threads([&] { return run_f32(c); });
    const auto before = run_f32(c);
    for (const std::size_t shift : {1, 5, 16}) {
      c.shift = shift;
      REQUIRE(same_bits(run_f32(c), before));
    }
  }
}

TEST_CASE("forms seen before create no primitives") {
  const Case<bf16> c{Form::nt, 300, 300, 64};
  run_f32(c);
  const std::uint64_t before = tile_primitives_created();
  for (int i = 0; i < 5; ++i) run_f32(c);
  CHECK(tile_primitives_created() == before);
}

namespace {

struct TileCase {
  TileForm form;
  std::vector<float> a, b;
};
TileCase tile_case(bool a_transposed, bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k) {
  TileForm f{.m = m, .n = n, .k = k};
  f.a_transposed = a_transposed;
  f.b_transposed = b_transposed;
  f.lda = (a_transposed ? m : k) + 2;
  f.ldb = (b_transposed ? k : n) + 5;
  f.ldc = n + 1;
  return {f, normal<float>((a_transposed ? k : m) * f.lda, 3), normal<float>((b_transposed ? n : k) * f.ldb, 4)};
}
Reference want(const TileCase& t) {
  const TileForm& f = t.form;
  return reference(
      f.m, f.n, f.k,
      [&](std::int64_t i, std::int64_t p) {
        return double{t.a[static_cast<std::size_t>(f.a_transposed ? p * f.lda + i : i * f.lda + p)]};
      },
      [&](std::int64_t p, std::int64_t j) {
        return double{t.b[static_cast<std::size_t>(f.b_transposed ? j * f.ldb + p : p * f.ldb + j)]};
      });
}

}  // namespace

TEST_CASE("the Highway tile agrees with a double reference in every form") {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      for (const auto& [m, n, k] :
           {std::array<std::int64_t, 3>{1, 1, 1}, {5, 31, 255}, {6, 32, 256}, {7, 33, 257}, {64, 100, 600}}) {
        TileCase t = tile_case(ta, tb, m, n, k);
        for (const bool accumulate : {false, true}) {
          t.form.accumulate = accumulate;
          std::vector<float> c(static_cast<std::size_t>(m * t.form.ldc), accumulate ? 2.0f : NAN), compact;
          tile_product_highway(t.form, t.a.data(), t.b.data(), c.data());
          for (std::int64_t r = 0; r < m; ++r) {
            compact.insert(compact.end(), c.begin() + r * t.form.ldc, c.begin() + r * t.form.ldc + n);
          }
          require_product(compact, want(t), k, accumulate ? 2.0 : 0.0);
        }
      }
    }
  }
}

TEST_CASE("the bf16 tile agrees with a double reference in every form that products and attention use") {
  // Where the processor has no bf16 dot product oneDNN emulates it, slowly: products widen instead, the tile is right.
  if (tile_library() == "Highway" || !__builtin_cpu_supports("avx512bw")) {
    WARN("skipped: no bf16 product in this build or on this processor");
    return;
  }
  for (const auto& [ta, tb] : {std::pair{false, false}, {false, true}, {true, false}}) {
    for (const auto& [m, n, k] :
         {std::array<std::int64_t, 3>{1, 1, 1}, {5, 31, 255}, {64, 96, 64}, {128, 256, 80}, {129, 33, 257}}) {
      TileCase t = tile_case(ta, tb, m, n, k);
      std::vector<bf16> a, b;
      for (float& v : t.a) v = to_float(a.emplace_back(round_to_bf16(v)));
      for (float& v : t.b) v = to_float(b.emplace_back(round_to_bf16(v)));
      t.form.operands = Dtype::bf16;
      for (const bool accumulate : {false, true}) {
        t.form.accumulate = accumulate;
        std::vector<float> c(static_cast<std::size_t>(m * t.form.ldc), accumulate ? 2.0f : NAN), compact;
        tile_product(t.form, a.data(), b.data(), c.data());
        for (std::int64_t r = 0; r < m; ++r) {
          compact.insert(compact.end(), c.begin() + r * t.form.ldc, c.begin() + r * t.form.ldc + n);
        }
        require_product(compact, want(t), k, accumulate ? 2.0 : 0.0);
      }
    }
  }
}

namespace {
volatile std::sig_atomic_t ticks = 0;
/// A signal with a handler of its own every half millisecond of processor time.
class Ticking {
 public:
  Ticking() {
    struct sigaction action {};
    action.sa_handler = [](int) { ticks = ticks + 1; };
    action.sa_flags = SA_RESTART;
    sigaction(SIGPROF, &action, &before_);
    const itimerval often{{0, 500}, {0, 500}};
    setitimer(ITIMER_PROF, &often, nullptr);
  }
  ~Ticking() {
    const itimerval never{};
    setitimer(ITIMER_PROF, &never, nullptr);
    sigaction(SIGPROF, &before_, nullptr);
  }

 private:
  struct sigaction before_ {};
};
}  // namespace

TEST_CASE("signals handled during products change nothing") {
  constexpr std::int64_t T = 256, h = 256, K = 512;
  const std::vector<float> a = normal<float>(T * K, 1), b = normal<float>(h * K, 2);
  std::vector<float> want(T * h), c(T * h);
  Products products(Dtype::f32);
  Scratch scratch(products.scratch_bytes(T, h, K));
  products.nt_f32(a.data(), K, b.data(), want.data(), h, T, h, K, scratch.data());
  const Ticking ticking;
  for (int i = 0; i < 10000 && ticks < 100; ++i) {
    products.nt_f32(a.data(), K, b.data(), c.data(), h, T, h, K, scratch.data());
    REQUIRE(c == want);
  }
  CHECK(ticks >= 100);
}
