// SwiGLU and GELU, forward and backward.
#include <tuple>

#include "kernels/cpu/layers.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activations.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, once for each target.
#include "kernels/cpu/simd-inl.h"

#ifndef TRANSLOAD_KERNELS_ACTIVATIONS_ONCE
#define TRANSLOAD_KERNELS_ACTIVATIONS_ONCE
namespace transload::kernels {

template <class T>
struct ActivationKernels {
  void (*swiglu)(const T* gate, const T* up, T* y, std::int64_t n);
  void (*swiglu_backward)(const T* gate, const T* up, const T* dy, T* dgate, T* dup, std::int64_t n);
  void (*gelu[2])(const T* x, T* y, std::int64_t n);  // by Gelu
  void (*gelu_backward[2])(const T* x, const T* dy, T* dx, std::int64_t n);
};
using ActivationTable = std::tuple<ActivationKernels<float>, ActivationKernels<bf16>>;

}  // namespace transload::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace transload::kernels {
namespace HWY_NAMESPACE {

HWY_INLINE HWY_ATTR V sigmoid(V x) {
  const V one = hn::Set(D(), 1.0f);
  return hn::Div(one, hn::Add(one, exp_of(hn::Neg(x))));
}

template <class T>
HWY_ATTR void swiglu_run(const T* gate, const T* up, T* y, std::int64_t count) {
  for_vectors(count, [&](std::int64_t i, std::size_t n) HWY_ATTR {
    const V g = load(gate + i, n);
    store(hn::Mul(hn::Mul(g, sigmoid(g)), load(up + i, n)), y + i, n);
  });
}

// silu'(g) = s + g·s·(1 − s) with s = sigmoid(g).
template <class T>
HWY_ATTR void swiglu_backward_run(const T* gate, const T* up, const T* dy, T* dgate, T* dup, std::int64_t count) {
  const V one = hn::Set(D(), 1.0f);
  for_vectors(count, [&](std::int64_t i, std::size_t n) HWY_ATTR {
    const V g = load(gate + i, n), u = load(up + i, n), d = load(dy + i, n);
    const V s = sigmoid(g);
    const V slope = hn::Mul(s, hn::MulAdd(g, hn::Sub(one, s), one));
    store(hn::Mul(hn::Mul(d, u), slope), dgate + i, n);
    store(hn::Mul(d, hn::Mul(g, s)), dup + i, n);
  });
}

/// The normal distribution's Φ(x), and its density φ(x) without the factor 1/√(2π).
struct Normal {
  V cumulative, bell;
};

// Φ(−|x|) = ½·erfc(z), z = |x|/√2, erfc(z) = e^(−z²)·t·P(t) with t = 1/(1 + z/2): P is a Chebyshev fit of degree 9 on
// z in [0, 10.5] with relative error 4.5e−8. No cancellation on the negative side; e^(−x²/2) is corrected for the
// rounding of x².
HWY_INLINE HWY_ATTR Normal normal(V x) {
  const D d;
  const V one = hn::Set(d, 1.0f), half = hn::Set(d, 0.5f);
  const V t = hn::Div(one, hn::MulAdd(hn::Abs(x), hn::Set(d, 0.353553390593f), one));
  V p = hn::Set(d, 0.0174617482865f);
  p = hn::MulAdd(p, t, hn::Set(d, -0.149686440919f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.486789891082f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.741037215886f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.474895577568f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.124030557699f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.233335382004f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.23721159444f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.283001592011f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.282058422352f));
  const V square = hn::Mul(x, x);
  // Beyond 20 the bell is zero, and the square's rounding (infinity less infinity) of no account.
  const auto near = hn::Not(hn::Gt(hn::Abs(x), hn::Set(d, 20.0f)));
  const V rest = hn::IfThenElseZero(near, hn::MulSub(x, x, square));
  const V bell = hn::Mul(exp_of_bounded(hn::Neg(hn::Mul(square, half))), hn::NegMulAdd(rest, half, one));
  const V tail = hn::Mul(hn::Mul(half, bell), hn::Mul(t, p));
  return {hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Sub(one, tail), tail), bell};
}

/// 2·√(2/π)·(x + 0.044715·x³): ½·(1 + tanh(u)) = sigmoid(2u).
HWY_INLINE HWY_ATTR V twice_inner(V x) {
  const D d;
  const V cubic = hn::MulAdd(hn::Mul(x, x), hn::Set(d, 0.044715f), hn::Set(d, 1.0f));
  return hn::Mul(hn::Mul(x, hn::Set(d, 1.5957691216057308f)), cubic);
}

template <Gelu kind, class T>
HWY_ATTR void gelu_run(const T* from, T* y, std::int64_t count) {
  for_vectors(count, [&](std::int64_t i, std::size_t n) HWY_ATTR {
    const V x = load(from + i, n);
    const V gate = kind == Gelu::tanh ? sigmoid(twice_inner(x)) : normal(x).cumulative;
    // −∞ · 0 is the limit 0, a large negative x underflows to it.
    store(hn::IfThenElse(hn::Eq(gate, hn::Zero(D())), hn::Zero(D()), hn::Mul(x, gate)), y + i, n);
  });
}

template <Gelu kind>
HWY_INLINE HWY_ATTR V gelu_slope(V x) {
  const D d;
  const V one = hn::Set(d, 1.0f);
  if constexpr (kind == Gelu::tanh) {
    const V s = sigmoid(twice_inner(x));
    const V inner_slope =
        hn::Mul(hn::Set(d, 1.5957691216057308f), hn::MulAdd(hn::Mul(x, x), hn::Set(d, 3 * 0.044715f), one));
    const V bend = hn::Mul(s, hn::Sub(one, s));
    const V product = hn::Mul(hn::Mul(x, bend), inner_slope);
    // Where the bend has underflowed, x² may have overflowed.
    return hn::Add(s, hn::IfThenElse(hn::Eq(bend, hn::Zero(d)), hn::Zero(d), product));
  } else {
    const Normal at = normal(x);
    const V product = hn::Mul(hn::Mul(x, hn::Set(d, 0.3989422804014327f)), at.bell);
    return hn::Add(at.cumulative, hn::IfThenElse(hn::Eq(at.bell, hn::Zero(d)), hn::Zero(d), product));
  }
}

template <Gelu kind, class T>
HWY_ATTR void gelu_backward_run(const T* x, const T* dy, T* dx, std::int64_t count) {
  for_vectors(count, [&](std::int64_t i, std::size_t n)
                         HWY_ATTR { store(hn::Mul(load(dy + i, n), gelu_slope<kind>(load(x + i, n))), dx + i, n); });
}

template <class T>
ActivationKernels<T> activation_kernels() {
  return {&swiglu_run<T>,
          &swiglu_backward_run<T>,
          {&gelu_run<Gelu::tanh, T>, &gelu_run<Gelu::exact, T>},
          {&gelu_backward_run<Gelu::tanh, T>, &gelu_backward_run<Gelu::exact, T>}};
}
ActivationTable activation_table() { return {activation_kernels<float>(), activation_kernels<bf16>()}; }

}  // namespace HWY_NAMESPACE
}  // namespace transload::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace transload::kernels {
namespace {

HWY_EXPORT(activation_table);
constexpr std::int64_t kBlock = 1 << 14;  // elements of one task

template <class T>
const ActivationKernels<T>& kernels() {
  static const ActivationTable table = HWY_DYNAMIC_DISPATCH(activation_table)();
  return std::get<ActivationKernels<T>>(table);
}

}  // namespace

template <class T>
void swiglu(const T* gate, const T* up, T* y, std::int64_t n) {
  parallel_blocks(n, kBlock, [&](std::int64_t begin, std::int64_t end) {
    kernels<T>().swiglu(gate + begin, up + begin, y + begin, end - begin);
  });
}

template <class T>
void swiglu_backward(const T* gate, const T* up, const T* dy, T* dgate, T* dup, std::int64_t n) {
  parallel_blocks(n, kBlock, [&](std::int64_t begin, std::int64_t end) {
    kernels<T>().swiglu_backward(gate + begin, up + begin, dy + begin, dgate + begin, dup + begin, end - begin);
  });
}

template <class T>
void gelu(Gelu kind, const T* x, T* y, std::int64_t n) {
  parallel_blocks(n, kBlock, [&](std::int64_t begin, std::int64_t end) {
    kernels<T>().gelu[static_cast<int>(kind)](x + begin, y + begin, end - begin);
  });
}

template <class T>
void gelu_backward(Gelu kind, const T* x, const T* dy, T* dx, std::int64_t n) {
  parallel_blocks(n, kBlock, [&](std::int64_t begin, std::int64_t end) {
    kernels<T>().gelu_backward[static_cast<int>(kind)](x + begin, dy + begin, dx + begin, end - begin);
  });
}

template void swiglu(const float*, const float*, float*, std::int64_t);
template void swiglu(const bf16*, const bf16*, bf16*, std::int64_t);
template void swiglu_backward(const float*, const float*, const float*, float*, float*, std::int64_t);
template void swiglu_backward(const bf16*, const bf16*, const bf16*, bf16*, bf16*, std::int64_t);
template void gelu(Gelu, const float*, float*, std::int64_t);
template void gelu(Gelu, const bf16*, bf16*, std::int64_t);
template void gelu_backward(Gelu, const float*, const float*, float*, std::int64_t);
template void gelu_backward(Gelu, const bf16*, const bf16*, bf16*, std::int64_t);

}  // namespace transload::kernels
#endif
