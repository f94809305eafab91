// Products by cuBLASLt (its stand-in, where there is no device) against a double reference: layouts, odd sizes,
// padding, batches; the table of algorithms. What the stand-in refuses (a broken promise of alignment, another shape's
// algorithm) fails here.
#include "kernels/cuda/products.h"

#include "kernels_cuda/twins.h"

using namespace transload;
using namespace transload::kernels;
using namespace transload::kernels::test;

namespace {

constexpr cudaStream_t kStream = nullptr;
constexpr std::uint64_t kWorkspace = std::uint64_t{1} << 20;

struct Sizes {
  std::int64_t tokens, h, inner, pad;
};
const std::vector<Sizes> kShapes = {{1, 1, 1, 0},   {1, 32, 8, 0},   {7, 3, 5, 1},   {16, 32, 64, 0},
                                    {17, 9, 33, 3}, {65, 64, 24, 8}, {31, 40, 1, 2}, {64, 1, 65, 5}};

/// Σ over k of x·y and of |x·y|.
struct Sum {
  double value = 0, magnitude = 0;
  void add(double x, double y) {
    value += x * y;
    magnitude += std::abs(x * y);
  }
};
/// Roundings of a sum in fp32 in any order, one more to the result's type.
void require_near(float got, const Sum& want, double before, bool to_bf16) {
  const double v = want.value + before;
  const double allowed = 0x1p-20 * (want.magnitude + std::abs(before)) + (to_bf16 ? 0x1p-8 * std::abs(v) : 0);
  INFO("got " << got << ", want " << v << ", allowed " << allowed);
  if (!(std::abs(got - v) <= allowed)) FAIL();
}

DeviceVector<std::byte> scratch_for(const Sizes& s) {
  return DeviceVector<std::byte>(cuda::product_scratch_bytes(s.tokens, s.h) + 256);
}
std::byte* on_boundary(DeviceVector<std::byte>& memory) {
  const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
  return memory.data() + (256 - at % 256) % 256;
}

template <class T>
void test_nt(cuda::Products& products, const Sizes& s, bool with_bias) {
  const std::int64_t lda = s.inner + s.pad, ldc = s.h + s.pad;
  const auto a = device_normal<T>(s.tokens * lda, 1), b = device_normal<T>(s.h * s.inner, 2);
  const auto bias = device_normal<float>(s.h, 3);
  DeviceVector<T> c(static_cast<std::size_t>(s.tokens * ldc), rounded(7, T()));
  auto memory = scratch_for(s);
  products.nt(kDtype<T>, a.data(), lda, b.data(), with_bias ? bias.data() : nullptr, c.data(), ldc, s.tokens, s.h,
              s.inner, on_boundary(memory), kStream);
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    for (std::int64_t j = 0; j < ldc; ++j) {
      const float got = to_float(c[static_cast<std::size_t>(t * ldc + j)]);
      if (j >= s.h) {
        REQUIRE(got == 7);
        continue;
      }
      Sum want;
      for (std::int64_t k = 0; k < s.inner; ++k)
        want.add(to_float(a[static_cast<std::size_t>(t * lda + k)]),
                 to_float(b[static_cast<std::size_t>(j * s.inner + k)]));
      require_near(got, want, with_bias ? bias[static_cast<std::size_t>(j)] : 0, std::is_same_v<T, bf16>);
    }
  }
}

template <class T>
void test_nn(cuda::Products& products, const Sizes& s, bool accumulate) {
  const std::int64_t lda = s.h + s.pad, ldc = s.inner + s.pad;
  const auto a = device_normal<T>(s.tokens * lda, 1), b = device_normal<T>(s.h * s.inner, 2);
  const auto before = device_normal<float>(s.tokens * ldc, 3);
  DeviceVector<float> c = before;
  auto memory = scratch_for(s);
  products.nn(kDtype<T>, a.data(), lda, b.data(), c.data(), ldc, s.tokens, s.h, s.inner, accumulate,
              on_boundary(memory), kStream);
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    for (std::int64_t j = 0; j < s.inner; ++j) {
      Sum want;
      for (std::int64_t k = 0; k < s.h; ++k)
        want.add(to_float(a[static_cast<std::size_t>(t * lda + k)]),
                 to_float(b[static_cast<std::size_t>(k * s.inner + j)]));
      const auto at = static_cast<std::size_t>(t * ldc + j);
      require_near(c[at], want, accumulate ? before[at] : 0, false);
    }
  }
}

template <class T>
void test_tn(cuda::Products& products, const Sizes& s) {
  const std::int64_t lda = s.h + s.pad, ldb = s.inner + s.pad;
  const auto a = device_normal<T>(s.tokens * lda, 1), b = device_normal<T>(s.tokens * ldb, 2);
  DeviceVector<float> g(static_cast<std::size_t>(s.h * s.inner), NAN);
  auto memory = scratch_for(s);
  products.tn(kDtype<T>, a.data(), lda, b.data(), ldb, g.data(), s.tokens, s.h, s.inner, on_boundary(memory), kStream);
  for (std::int64_t i = 0; i < s.h; ++i) {
    for (std::int64_t j = 0; j < s.inner; ++j) {
      Sum want;
      for (std::int64_t t = 0; t < s.tokens; ++t)
        want.add(to_float(a[static_cast<std::size_t>(t * lda + i)]),
                 to_float(b[static_cast<std::size_t>(t * ldb + j)]));
      require_near(g[static_cast<std::size_t>(i * s.inner + j)], want, 0, false);
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("CUDA products agree with a double reference", "", float, bf16) {
  cuda::Products products("stand-in", kWorkspace);
  for (const Sizes& s : kShapes) {
    INFO(s.tokens << " tokens, " << s.h << " rows, inner " << s.inner << ", padding " << s.pad);
    for (const bool second : {false, true}) {
      test_nt<TestType>(products, s, second);
      test_nn<TestType>(products, s, second);
    }
    test_tn<TestType>(products, s);
  }
}

TEST_CASE("Chosen algorithms go into text and come back; another library's or device's are refused") {
  cuda::Products first("stand-in A", kWorkspace);
  const Sizes s{17, 9, 33, 3};
  test_nt<bf16>(first, s, false);
  test_tn<bf16>(first, s);
  REQUIRE(first.size() == 2);
  const std::string text = first.to_json();
  cuda::Products again("stand-in A", kWorkspace);
  REQUIRE(again.from_json(text));
  REQUIRE(again.size() == 2);
  test_nt<bf16>(again, s, false);
  REQUIRE(again.to_json() == text);
  for (const std::string& other : {std::string("{"), std::string("[]"), std::string("{\"identity\":3}")})
    REQUIRE(!again.from_json(other));
  cuda::Products elsewhere("stand-in B", kWorkspace);
  REQUIRE(!elsewhere.from_json(text));
  REQUIRE(elsewhere.size() == 0);
}

TEST_CASE("A device's bytes of workspace are a constant of its architecture, and plans take the largest") {
  REQUIRE(cuda::product_workspace_bytes(9) == 32u << 20);
  REQUIRE(cuda::product_workspace_bytes(8) == 4u << 20);
  REQUIRE(cuda::product_scratch_bytes(10, 20) == (32u << 20) + 800);
}
