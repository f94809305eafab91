// Casts, additions, column sums, embedding and activations: the CPU's bits.
#include "kernels/cpu/adamw.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/layers.h"
#include "kernels_cuda/twins.h"

using namespace transload;
using namespace transload::kernels;
using namespace transload::kernels::test;

namespace {

constexpr cudaStream_t kStream = nullptr;

/// Sequences with fma give the same bits only where the CPU's kernels have one.
bool processor_has_fma() { return target_in_use().starts_with("AVX"); }

}  // namespace

TEST_CASE("widening and narrowing give the CPU's bits") {
  at_all_sizes([](std::int64_t n, const std::array<std::int64_t, 5>& s) {
    Array<bf16> narrow_values(n, s[0]), got_narrow(n, s[2]), want_narrow(n, s[2]);
    Array<float> wide(n, s[1]), got_wide(n, s[3]), want_wide(n, s[3]);
    narrow_values.wild(1);
    wide.wild(2);
    cuda::widen(narrow_values.data(), got_wide.data(), n, kStream);
    widen(narrow_values.data(), want_wide.data(), n);
    require_same("wide", got_wide, want_wide);
    cuda::narrow(wide.data(), got_narrow.data(), n, kStream);
    narrow(wide.data(), want_narrow.data(), n);
    require_same("narrow", got_narrow, want_narrow, false);
  });
}

TEMPLATE_TEST_CASE("sums and activations give the CPU's bits, in place too", "", float, bf16) {
  if (!processor_has_fma()) WARN("skipped: bits of activations on a processor without fma");
  at_all_sizes([](std::int64_t n, const std::array<std::int64_t, 5>& s) {
    Array<TestType> a(n, s[0]), b(n, s[1]), d(n, s[2]), got(n, s[3]), want(n, s[3]), got2(n, s[4]), want2(n, s[4]);
    a.wild(1);
    b.wild(2);
    d.wild(3);
    cuda::add(a.data(), b.data(), got.data(), n, kStream);
    add(a.data(), b.data(), want.data(), n);
    require_same("sum", got, want);
    if (!processor_has_fma()) return;
    cuda::swiglu(a.data(), b.data(), got.data(), n, kStream);
    swiglu(a.data(), b.data(), want.data(), n);
    require_same("swiglu", got, want);
    cuda::swiglu_backward(a.data(), b.data(), d.data(), got.data(), got2.data(), n, kStream);
    swiglu_backward(a.data(), b.data(), d.data(), want.data(), want2.data(), n);
    require_same("dgate", got, want);
    require_same("dup", got2, want2);
    for (const Gelu kind : {Gelu::tanh, Gelu::exact}) {
      cuda::gelu(kind, a.data(), got.data(), n, kStream);
      gelu(kind, a.data(), want.data(), n);
      require_same("gelu", got, want);
      cuda::gelu_backward(kind, a.data(), d.data(), got.data(), n, kStream);
      gelu_backward(kind, a.data(), d.data(), want.data(), n);
      require_same("gelu's gradient", got, want);
    }
    cuda::swiglu_backward(a.data(), b.data(), d.data(), a.data(), b.data(), n, kStream);
    require_same("dup in place", b.data(), want2.data(), n);
    REQUIRE(a.guards_are_whole());
    REQUIRE(b.guards_are_whole());
  });
}

namespace {

const std::vector<std::pair<std::int64_t, std::int64_t>> kRowShapes = {
    {0, 16}, {1, 1}, {1, 8}, {2, 15}, {3, 17}, {63, 48}, {64, 104}, {65, 33}, {129, 520}};

}  // namespace

TEMPLATE_TEST_CASE("rows are rounded with bias and residual as on the CPU", "", float, bf16) {
  for (const auto& [tokens, width] : kRowShapes) {
    for (const std::int64_t shift : {0, 3}) {
      const std::int64_t n = tokens * width;
      INFO(tokens << " × " << width << ", shift " << shift);
      Array<float> acc(n, shift), bias(width, shift);
      Array<TestType> residual(n, shift), got(n, shift), want(n, shift);
      acc.wild(1);
      bias.wild(2);
      residual.wild(3);
      for (const int with : {0, 1, 2, 3}) {
        const float* b = with % 2 ? bias.data() : nullptr;
        const TestType* r = with / 2 ? residual.data() : nullptr;
        cuda::round_rows(acc.data(), b, r, got.data(), tokens, width, kStream);
        round_rows(acc.data(), b, r, want.data(), tokens, width);
        require_same("rounded rows", got, want);
      }
    }
  }
}

TEMPLATE_TEST_CASE("column sums are the CPU's", "", float, bf16) {
  for (const auto& [tokens, width] : kRowShapes) {
    for (const std::int64_t gap : {0, 3, 8}) {
      INFO(tokens << " × " << width << ", rows " << width + gap << " apart");
      Array<TestType> dy(tokens * (width + gap), 0);
      dy.from(normal<TestType>(dy.size(), 1));
      if (dy.size() > 40) set_value(std::nanf("1"), dy[40]);
      Array<float> got(width, 0), want(width, 0);
      auto scratch = scratch_of(cuda::norm_scratch_bytes(tokens, width));
      cuda::column_sum(dy.data(), width + gap, got.data(), tokens, width, scratch.data(), kStream);
      column_sum(dy.data(), width + gap, want.data(), tokens, width, scratch.data());
      require_same("sum", got, want);
    }
  }
}

TEMPLATE_TEST_CASE("embedding rows are gathered and scattered as on the CPU, from any part of a table", "", float,
                   bf16) {
  for (const std::int64_t width : {1, 8, 15, 72, 2064}) {
    const std::int64_t vocab = 11, tokens = 37;
    Array<TestType> table(vocab * width, 0), dx(tokens * width, 0);
    table.wild(1);
    dx.from(normal<TestType>(tokens * width, 2));
    DeviceVector<std::int32_t> ids(static_cast<std::size_t>(tokens)), order(ids.size()), sorted(ids.size());
    std::mt19937 random(3);
    for (auto& id : ids) id = static_cast<std::int32_t>(random() % 10);  // the last row has no token
    cuda::embedding_index(ids.data(), tokens, order.data(), sorted.data());
    const std::int64_t all = vocab * width;
    for (const auto& [begin, end] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {0, all}, {0, 0}, {3 * width, all}, {width / 2, all - width / 3}, {8, all / 8 * 8}, {1, 2}}) {
      if (begin > end) continue;
      INFO("width " << width << ", elements " << begin << " to " << end);
      const auto from = static_cast<std::uint64_t>(begin), to = static_cast<std::uint64_t>(end);
      for (const bool add : {false, true}) {
        Array<TestType> got(tokens * width, 0), want(tokens * width, 0);
        got.wild(4);
        want.wild(4);
        cuda::embedding_gather(ids.data(), tokens, width, table.data() + begin, from, to - from, add, got.data(),
                               kStream);
        const BlockView view(reinterpret_cast<std::byte*>(table.data()),
                             static_cast<std::uint64_t>(all) * sizeof(TestType));
        embedding_gather(ids.data(), tokens, width, view, from * sizeof(TestType), from, to - from, add, want.data());
        require_same("x", got, want, add);
      }
      Array<float> got(end - begin, 0), plain(end - begin, 0), want(end - begin, 0);
      cuda::embedding_scatter(ids.data(), tokens, width, dx.data(), from, to, got.data(), {order.data(), sorted.data()},
                              kStream);
      cuda::embedding_scatter(ids.data(), tokens, width, dx.data(), from, to, plain.data(), {}, kStream);
      if (begin < end) embedding_scatter(ids.data(), tokens, width, dx.data(), from, to, want.data());
      require_same("gradient by index", got, want, false);
      require_same("gradient by ids", plain, want, false);
    }
  }
}

TEMPLATE_TEST_CASE("rotary embedding gives the CPU's bits both ways", "", float, bf16) {
  if (!processor_has_fma()) return;
  for (const std::int64_t head_dim : {2, 6, 16, 64}) {
    for (const std::int64_t gap : {0, 3, 16}) {
      const std::int64_t tokens = 11, length = 5, heads = 9, ld = heads * head_dim + gap;
      INFO("head_dim " << head_dim << ", rows " << ld << " apart");
      Array<float> cos(length * head_dim / 2, 0), sin(length * head_dim / 2, 0);
      cos.from(normal<float>(cos.size(), 1));
      sin.from(normal<float>(sin.size(), 2));
      for (const bool inverse : {false, true}) {
        Array<TestType> got(tokens * ld, 0), want(tokens * ld, 0);
        got.wild(3);
        want.wild(3);
        cuda::rotary(got.data(), ld, tokens, length, heads, head_dim, cos.data(), sin.data(), inverse, kStream);
        rotary(want.data(), ld, tokens, length, heads, head_dim, cos.data(), sin.data(), inverse);
        require_same("x", got, want);
      }
    }
  }
}
