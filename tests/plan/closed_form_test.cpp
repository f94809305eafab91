#include "plan/closed_form.h"

#include <algorithm>
#include <catch2/catch.hpp>

using namespace transload;

namespace {

/// 7B-like on a device of 100 TFLOP/s; powers of two where that makes the sums plain.
ClosedForm form() {
  return {.parameters = 8e9,
          .layers = 32,
          .hidden = 4096,
          .length = 0,
          .tokens = 4096,
          .products = 1e14,
          .network = 1e10,
          .latency_s = 1e-5,
          .memory_bytes = 1e11};
}

}  // namespace

TEST_CASE("closed form: one rank has no network, and the step is computation alone") {
  const ClosedFormRow row = closed_form(form(), 1);
  CHECK(row.pass_s == 0);
  CHECK(row.first_binds == "computation");
  CHECK(row.second_binds == "computation");
  CHECK(row.step_s == Approx(8e9 * 2 * 4096 * 4 / 1e14).epsilon(1e-12));
  CHECK(row.model_utilisation == Approx(0.75).epsilon(1e-12));
  CHECK(row.state_bytes == Approx(14 * 8e9));
  CHECK(row.tokens_that_fit == 0);  // 112 GB of state do not fit in 100 GB
}

TEST_CASE("closed form: a pass is a gather of what others hold, and a hop a layer and rank") {
  const ClosedFormRow row = closed_form(form(), 4);
  CHECK(row.pass_s == Approx(16e9 / 1e10 * 3 / 4 + 32 * 4 * 1e-5).epsilon(1e-12));
  CHECK(row.second_s == Approx(std::max(row.backward_s, 2 * row.pass_s)));
  const double free = 1e11 - 14 * 2e9;
  CHECK(row.tokens_that_fit == Approx(free / (32 * 4096 * 2)).epsilon(1e-12));
}

TEST_CASE("closed form: with the network alone, the ceiling of the literature less the scatter") {
  // Both parts wait for the network: E_max tokens over three passes (two and the scatter).
  ClosedForm f = form();
  f.latency_s = 0;
  f.network = 1e6;
  const double n = 4096;
  f.tokens = closed_form(f, n).tokens_that_fit;
  const ClosedFormRow row = closed_form(f, n);
  CHECK(row.first_binds == "network");
  CHECK(row.second_binds == "network");
  CHECK(row.tokens_per_s / n == Approx(f.tokens / (3 * 16e9 / 1e6 * (n - 1) / n)).epsilon(1e-12));
}

TEST_CASE("closed form: drives share the state, and hide behind forward alone") {
  ClosedForm f = form();
  f.nvme_read = 7e9;
  f.nvme_write = 6e9;
  const ClosedFormRow one = closed_form(f, 1), eight = closed_form(f, 8);
  CHECK(one.first_binds == "NVMe write");
  CHECK(one.first_s == Approx(12 * 8e9 / 6e9));
  CHECK(eight.state_bytes == Approx(one.state_bytes / 8));
  CHECK(eight.first_s < one.first_s / 4);
  f.host_bytes = one.state_bytes / 2;
  CHECK(closed_form(f, 1).first_s == Approx(one.first_s / 2).epsilon(1e-12));
  CHECK(closed_form(f, 2).first_binds == "network");  // each half fits in its memory: the drives are idle
}

TEST_CASE("closed form: from these tokens on a link takes as long as its computation") {
  ClosedForm f = form();
  f.to_device = 2.5e10;
  f.tokens = tokens_that_hide(f, 2, f.to_device, 1);
  const ClosedFormRow row = closed_form(f, 1);
  CHECK(row.forward_s == Approx(2 * f.parameters / f.to_device).epsilon(1e-12));
  CHECK(tokens_that_hide(f, 2, 0, 1) == 0);
}
