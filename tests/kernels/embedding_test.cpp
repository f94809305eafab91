#include "kernels/cpu/embedding.h"

#include <array>
#include <catch2/catch.hpp>
#include <limits>
#include <numeric>

#include "kernels/arrays.h"

using namespace transload;
using namespace transload::kernels;
using namespace transload::kernels::test;

namespace {

std::vector<std::int32_t> random_ids(std::int64_t n, std::int32_t vocab, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  for (auto& id : ids) id = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(vocab));
  return ids;
}

/// Bytes laid over frames in reverse order of address.
struct Frames {
  std::vector<std::byte> memory;
  std::vector<std::uint32_t> next;
  FrameTable table;
  BlockView view;

  Frames(const void* from, std::uint64_t bytes, std::uint64_t frame_bytes) {
    const auto count = static_cast<std::uint32_t>((bytes + frame_bytes - 1) / frame_bytes);
    memory.resize(count * frame_bytes);
    next.resize(count);
    for (std::uint32_t f = 0; f < count; ++f) next[f] = f == 0 ? UINT32_MAX : f - 1;
    table = {memory.data(), frame_bytes, next.data()};
    view = BlockView(&table, count - 1, bytes);
    view.copy_in(from, 0, bytes);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("embedding rows are gathered from the parts of a table, over frames", "", float, bf16) {
  const std::int64_t vocab = 50, width = 24, tokens = 33;
  const auto table = normal<TestType>(vocab * width, 1), before = normal<TestType>(tokens * width, 2);
  const auto ids = random_ids(tokens, vocab, 3);
  const std::uint64_t lead = 16;  // bytes of something else ahead of the table in its block
  for (const bool add : {false, true}) {
    for (const std::uint64_t cut :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{100}, std::uint64_t{24 * 30}, std::uint64_t{24 * 50}}) {
      auto x = before;
      for (const auto& [begin, end] :
           {std::pair<std::uint64_t, std::uint64_t>{0, cut}, {cut, static_cast<std::uint64_t>(vocab * width)}}) {
        std::vector<TestType> block(lead / sizeof(TestType));
        block.insert(block.end(), table.begin() + static_cast<std::ptrdiff_t>(begin),
                     table.begin() + static_cast<std::ptrdiff_t>(end));
        const Frames frames(block.data(), block.size() * sizeof(TestType), 64);
        embedding_gather(ids.data(), tokens, width, frames.view, lead, begin, end - begin, add, x.data());
      }
      for (std::size_t i = 0; i < x.size(); ++i) {
        const float row = to_float(table[static_cast<std::size_t>(ids[i / static_cast<std::size_t>(width)] * width) +
                                         i % static_cast<std::size_t>(width)]);
        REQUIRE(to_float(x[i]) == to_float(rounded(add ? to_float(before[i]) + row : row, TestType())));
      }
    }
  }
}

TEMPLATE_TEST_CASE("gathering leaves alone what lies elsewhere", "", float, bf16) {
  const std::int64_t width = 8;
  auto table = normal<TestType>(width, 1);
  const std::int32_t id = 0;
  std::vector<TestType> x(8, rounded(9.0f, TestType()));
  const BlockView view(reinterpret_cast<std::byte*>(table.data()), 3 * sizeof(TestType));
  embedding_gather(&id, 1, width, view, 0, 5, 3, false, x.data());
  for (std::size_t i = 0; i < 5; ++i) REQUIRE(to_float(x[i]) == 9.0f);
  for (std::size_t i = 5; i < 8; ++i) REQUIRE(to_float(x[i]) == to_float(table[i - 5]));
}

TEMPLATE_TEST_CASE("gradients of embedding rows are sums over tokens, ascending", "", float, bf16) {
  const std::int64_t vocab = 3000, width = 40, tokens = 5000;
  const auto dx = normal<TestType>(tokens * width, 1);
  const auto ids = random_ids(tokens, vocab, 2);
  std::vector<float> want(static_cast<std::size_t>(vocab * width));
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = 0; i < width; ++i) {
      want[static_cast<std::size_t>(ids[static_cast<std::size_t>(t)] * width + i)] +=
          to_float(dx[static_cast<std::size_t>(t * width + i)]);
    }
  }
  for (const auto& [begin, end] :
       {std::pair<std::uint64_t, std::uint64_t>{0, 120000}, {0, 1}, {39, 41}, {7, 7}, {100, 99999}, {119999, 120000}}) {
    const auto run = [&, from = begin, to = end] {
      std::vector<float> out(to - from, NAN);
      embedding_scatter(ids.data(), tokens, width, dx.data(), from, to, out.data());
      return out;
    };
    const std::vector<float> part(want.begin() + static_cast<std::ptrdiff_t>(begin),
                                  want.begin() + static_cast<std::ptrdiff_t>(end));
    REQUIRE(same_bits(run(), part));
    require_same_on_any_threads(run);
  }
}

namespace {

/// Cross-entropy over panels of `panel` ids; rows of logits are padded.
template <class T>
struct Loss {
  std::int64_t tokens, vocab, panel;
  float scale = 0.125f;
  std::vector<float> logits, max, sum, target;
  std::vector<std::int32_t> targets;
  std::vector<T> gradient;  // [tokens, vocab]
  double loss = 0;

  Loss(std::int64_t t, std::int64_t v, std::int64_t p, float spread = 3.0f) : tokens(t), vocab(v), panel(p) {
    logits = normal<float>(t * v, 1, spread);
    targets = random_ids(t, static_cast<std::int32_t>(v), 2);
  }
  void run() {
    const auto n = static_cast<std::size_t>(tokens);
    max.assign(n, NAN);
    sum.assign(n, NAN);
    target.assign(n, NAN);
    gradient.assign(static_cast<std::size_t>(tokens * vocab), rounded(NAN, T()));
    const LossRows rows{max.data(), sum.data(), target.data()};
    loss_reset(rows, tokens);
    const auto each_panel = [&](const auto& fn) {
      for (std::int64_t first = 0; first < vocab; first += panel) fn(first, std::min(panel, vocab - first));
    };
    each_panel([&](std::int64_t first, std::int64_t width) {
      loss_panel(logits.data() + first, vocab, tokens, first, width, targets.data(), rows);
    });
    loss = loss_sum(rows, tokens);
    each_panel([&](std::int64_t first, std::int64_t width) {
      std::vector<T> part(static_cast<std::size_t>(tokens * width));
      loss_panel_backward(logits.data() + first, vocab, tokens, first, width, targets.data(), rows, scale, part.data());
      for (std::int64_t t = 0; t < tokens; ++t) {
        std::copy_n(part.begin() + t * width, width, gradient.begin() + t * vocab + first);
      }
    });
  }
};

}  // namespace

TEMPLATE_TEST_CASE("cross-entropy and its gradient agree with a double reference", "", float, bf16) {
  for (const auto& [tokens, vocab, panel] : {std::array<std::int64_t, 3>{1, 1, 1},
                                             {1, 5, 2},
                                             {7, 100, 100},
                                             {33, 257, 64},
                                             {5, 5000, 1024},
                                             {70, 300, 17}}) {
    for (const float spread : {0.01f, 3.0f, 40.0f}) {
      Loss<TestType> l(tokens, vocab, panel, spread);
      l.run();
      double want = 0, tolerance = 0;
      for (std::int64_t t = 0; t < tokens; ++t) {
        const float* row = l.logits.data() + t * vocab;
        const double top = *std::max_element(row, row + vocab);
        double sum = 0;
        for (std::int64_t i = 0; i < vocab; ++i) sum += std::exp(row[i] - top);
        const std::int32_t target = l.targets[static_cast<std::size_t>(t)];
        want += std::log(sum) + top - row[target];
        // Each exponential: its argument's rounding and its own; sums over lanes and panels.
        const double ulps = 4 + spread * 8 + static_cast<double>(vocab / panel) + static_cast<double>(panel) / 16;
        tolerance += ulps * 0x1p-24;
        for (std::int64_t i = 0; i < vocab; ++i) {
          const double p = std::exp(row[i] - top) / sum;
          const double g = (p - (i == target ? 1.0 : 0.0)) * l.scale;
          INFO("token " << t << " id " << i << " of " << vocab << " in panels of " << panel);
          REQUIRE(close(to_float(l.gradient[static_cast<std::size_t>(t * vocab + i)]), g,
                        ulps * 0x1p-24 * l.scale * (p + (i == target ? 1.0 : 0.0)) + 1e-36, kUnit<TestType>));
        }
      }
      REQUIRE(std::abs(l.loss - want) <= tolerance);
    }
  }
}

TEMPLATE_TEST_CASE("a NaN logit makes its token's loss and gradient NaN, and no other's", "", float, bf16) {
  for (const std::size_t at : {0, 63, 64, 99}) {
    Loss<TestType> l(3, 100, 64);
    l.logits[100 + at] = std::bit_cast<float>(0x7FC00155u);  // a payload must not turn it into a number
    l.run();
    REQUIRE(std::isnan(l.loss));
    for (std::size_t i = 0; i < l.gradient.size(); ++i) {
      REQUIRE(std::isnan(to_float(l.gradient[i])) == (i / 100 == 1));
    }
  }
}

TEMPLATE_TEST_CASE("a token without a target counts in neither loss nor gradient, whatever its logits", "", float,
                   bf16) {
  Loss<TestType> with(4, 300, 70), without(4, 300, 70);
  with.targets[2] = -1;
  for (std::size_t i = 0; i < 300; ++i) with.logits[600 + i] = i % 2 == 0 ? NAN : INFINITY;
  with.run();
  without.run();
  const auto row_loss = [&](std::size_t t) {
    return std::log(static_cast<double>(without.sum[t])) + (static_cast<double>(without.max[t]) - without.target[t]);
  };
  REQUIRE(with.loss == row_loss(0) + row_loss(1) + row_loss(3));
  for (std::size_t i = 0; i < with.gradient.size(); ++i)
    REQUIRE(to_float(with.gradient[i]) == (i / 300 == 2 ? 0.0f : to_float(without.gradient[i])));
}

TEMPLATE_TEST_CASE("the bits of the loss do not depend on threads", "", float, bf16) {
  Loss<TestType> l(200, 1000, 300);
  require_same_on_any_threads([&] {
    l.run();
    std::vector<float> all(l.sum);
    for (const auto v : l.gradient) all.push_back(to_float(v));
    all.push_back(static_cast<float>(l.loss));
    return all;
  });
}
