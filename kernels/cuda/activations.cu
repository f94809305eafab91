#include "kernels/cuda/activations.cuh"

#include "kernels/cuda/kernels.h"

namespace transload::kernels::cuda {
namespace {

template <Gelu kKind, class T>
void start_gelu(const T* x, T* y, std::int64_t n, cudaStream_t stream) {
  launch_elementwise("gelu", GeluForward<kKind, T>{x, y}, span_of(n, {operand(x), operand(y)}), stream);
}
template <Gelu kKind, class T>
void start_gelu_backward(const T* x, const T* dy, T* dx, std::int64_t n, cudaStream_t stream) {
  launch_elementwise("gelu_backward", GeluBackward<kKind, T>{x, dy, dx},
                     span_of(n, {operand(x), operand(dy), operand(dx)}), stream);
}

}  // namespace

template <class T>
void swiglu(const T* gate, const T* up, T* y, std::int64_t n, cudaStream_t stream) {
  launch_elementwise("swiglu", Swiglu<T>{gate, up, y}, span_of(n, {operand(gate), operand(up), operand(y)}), stream);
}

template <class T>
void swiglu_backward(const T* gate, const T* up, const T* dy, T* dgate, T* dup, std::int64_t n, cudaStream_t stream) {
  launch_elementwise("swiglu_backward", SwigluBackward<T>{gate, up, dy, dgate, dup},
                     span_of(n, {operand(gate), operand(up), operand(dy), operand(dgate), operand(dup)}), stream);
}

template <class T>
void gelu(Gelu kind, const T* x, T* y, std::int64_t n, cudaStream_t stream) {
  if (kind == Gelu::tanh) {
    start_gelu<Gelu::tanh>(x, y, n, stream);
  } else {
    start_gelu<Gelu::exact>(x, y, n, stream);
  }
}

template <class T>
void gelu_backward(Gelu kind, const T* x, const T* dy, T* dx, std::int64_t n, cudaStream_t stream) {
  if (kind == Gelu::tanh) {
    start_gelu_backward<Gelu::tanh>(x, dy, dx, n, stream);
  } else {
    start_gelu_backward<Gelu::exact>(x, dy, dx, n, stream);
  }
}

template void swiglu(const float*, const float*, float*, std::int64_t, cudaStream_t);
template void swiglu(const bf16*, const bf16*, bf16*, std::int64_t, cudaStream_t);
template void swiglu_backward(const float*, const float*, const float*, float*, float*, std::int64_t, cudaStream_t);
template void swiglu_backward(const bf16*, const bf16*, const bf16*, bf16*, bf16*, std::int64_t, cudaStream_t);
template void gelu(Gelu, const float*, float*, std::int64_t, cudaStream_t);
template void gelu(Gelu, const bf16*, bf16*, std::int64_t, cudaStream_t);
template void gelu_backward(Gelu, const float*, const float*, float*, std::int64_t, cudaStream_t);
template void gelu_backward(Gelu, const bf16*, const bf16*, bf16*, std::int64_t, cudaStream_t);

}  // namespace transload::kernels::cuda
