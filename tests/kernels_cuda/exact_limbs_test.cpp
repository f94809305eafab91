// Sums of squares on the device, in limbs: the CPU's exact sum, bit for bit.
#include "kernels/cuda/exact_limbs.h"

#include "kernels/cpu/exact_sum.h"
#include "kernels_cuda/twins.h"

using namespace transload;
using namespace transload::kernels;
using namespace transload::kernels::test;

TEST_CASE("Limbs added on the device are the CPU's exact sum") {
  std::mt19937_64 random(5);
  for (const std::int64_t n : {0, 1, 255, 256, 4095, 4096, 4097, 10000}) {
    DeviceVector<double> values(static_cast<std::size_t>(n));
    for (double& v : values) {
      const std::uint64_t bits = random() >> 1;
      v = random() % 5 == 0 ? 5e-324 * static_cast<double>(random() % 9) : std::bit_cast<double>(bits);
    }
    DeviceVector<unsigned long long> on_device(ExactSum::kLimbs);
    cuda::add_to_limbs(values.data(), n, on_device.data(), nullptr);
    std::array<std::uint64_t, ExactSum::kLimbs> limbs{};
    std::copy(on_device.begin(), on_device.end(), limbs.begin());
    ExactSum want;
    for (const double v : values) {
      if (std::isfinite(v)) want.add(v);
    }
    const ExactSum got(limbs, false);
    INFO(n << " values");
    REQUIRE(std::bit_cast<std::uint64_t>(got.value()) == std::bit_cast<std::uint64_t>(want.value()));
    REQUIRE(std::isnan(ExactSum(limbs, true).value()));
  }
}

TEST_CASE("Limbs that have carried over are taken whole") {
  std::array<std::uint64_t, ExactSum::kLimbs> limbs{};
  limbs.fill(0);
  ExactSum want;
  for (int i = 0; i < 1000; ++i) want.add(1.0);
  limbs[1074 / 32] = 1000 * (std::uint64_t{1} << (1074 % 32));
  REQUIRE(ExactSum(limbs, false).value() == want.value());
}
