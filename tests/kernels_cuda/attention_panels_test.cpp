// Attention over panels on the device against the CPU's, for one panel and several, grouped heads, odd sizes.
#include "kernels/cuda/attention_panels.h"

#include "kernels/cpu/attention.h"
#include "kernels_cuda/twins.h"

using namespace transload;
using namespace transload::kernels;
using namespace transload::kernels::test;

namespace {

constexpr cudaStream_t kStream = nullptr;

template <class T>
struct Arrays {
  AttentionShape s;
  DeviceVector<T> q, k, v, dout, out, dq, dk, dv;
  DeviceVector<float> lse;

  Arrays(std::int64_t batch, std::int64_t length, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim) {
    s = {batch, length, heads, kv_heads, head_dim};
    s.ld_q = heads * head_dim + 4;
    s.ld_k = kv_heads * head_dim + 2;
    s.ld_v = kv_heads * head_dim;
    s.ld_o = heads * head_dim + 6;
    s.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    const std::int64_t tokens = batch * length;
    q = device_normal<T>(tokens * s.ld_q, 1);
    k = device_normal<T>(tokens * s.ld_k, 2);
    v = device_normal<T>(tokens * s.ld_v, 3);
    dout = device_normal<T>(tokens * s.ld_o, 4);
    out.assign(dout.size(), T());
    dq.assign(q.size(), T());
    dk.assign(k.size(), T());
    dv.assign(v.size(), T());
    lse.assign(static_cast<std::size_t>(batch * heads * length), NAN);
  }
  void on_cpu() {
    Scratch scratch(attention_scratch_bytes(s, kDtype<T>));
    attention_forward(s, q.data(), k.data(), v.data(), out.data(), lse.data(), scratch.data());
    attention_backward(s, q.data(), k.data(), v.data(), out.data(), dout.data(), lse.data(), dq.data(), dk.data(),
                       dv.data(), scratch.data());
  }
  void on_device(cuda::Products& products) {
    DeviceVector<std::byte> memory(cuda::attention_scratch_bytes(s, kDtype<T>) + 256, std::byte{0xCB});
    std::byte* const scratch = memory.data() + (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256) % 256;
    cuda::attention_forward(products, s, q.data(), k.data(), v.data(), out.data(), lse.data(), scratch, kStream);
    cuda::attention_backward(products, s, q.data(), k.data(), v.data(), out.data(), dout.data(), lse.data(), dq.data(),
                             dk.data(), dv.data(), scratch, kStream);
  }
};

template <class V>
void require_near(const char* what, const DeviceVector<V>& got, const DeviceVector<V>& want, double relative) {
  double largest = 0;
  for (const V& v : want) largest = std::max(largest, std::abs(static_cast<double>(to_float(v))));
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double g = to_float(got[i]), w = to_float(want[i]);
    INFO(what << "[" << i << "]: got " << g << ", the CPU " << w << ", largest " << largest);
    if (!(std::abs(g - w) <= relative * (std::abs(w) + largest))) FAIL();
  }
}

}  // namespace

TEMPLATE_TEST_CASE("Attention over panels is the CPU's, within roundings", "", float, bf16) {
  cuda::Products products("stand-in", std::uint64_t{1} << 20);
  struct Shape {
    std::int64_t batch, length, heads, kv_heads, head_dim;
  };
  for (const Shape& shape : {Shape{1, 1, 1, 1, 2}, Shape{2, 17, 4, 2, 8}, Shape{1, 128, 2, 1, 16},
                             Shape{1, 130, 6, 3, 10}, Shape{2, 300, 2, 2, 4}}) {
    INFO(shape.batch << " × " << shape.length << ", heads " << shape.heads << "/" << shape.kv_heads);
    Arrays<TestType> cpu(shape.batch, shape.length, shape.heads, shape.kv_heads, shape.head_dim), device = cpu;
    cpu.on_cpu();
    device.on_device(products);
    const double relative = std::is_same_v<TestType, float> ? 2e-6 : 0x1p-7;
    require_near("out", device.out, cpu.out, relative);
    require_near("lse", device.lse, cpu.lse, std::is_same_v<TestType, float> ? 2e-6 : 1e-5);
    require_near("dq", device.dq, cpu.dq, relative);
    require_near("dk", device.dk, cpu.dk, relative);
    require_near("dv", device.dv, cpu.dv, relative);
  }
}

TEST_CASE("Attention's memory grows with the length, not with its square") {
  AttentionShape s{1, 4096, 32, 8, 128};
  const std::uint64_t at_4096 = cuda::attention_scratch_bytes(s, Dtype::bf16);
  s.length = 65536;
  REQUIRE(cuda::attention_scratch_bytes(s, Dtype::bf16) < 16 * at_4096);
}
