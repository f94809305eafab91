// Law 1: rounding and denormal modes are ours while a kernel runs, whatever a library left in the thread before.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace transload::kernels {

/// Round to nearest even, denormals kept, exceptions masked; the thread's former modes return with the destructor.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : saved_(_mm_getcsr()) {
    if (saved_ != kDefault) _mm_setcsr(kDefault);
  }
  ~FloatMode() { _mm_setcsr(saved_); }
#else
  FloatMode() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatMode() { std::fesetenv(&saved_); }
#endif
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr unsigned kDefault = 0x1F80;  // MXCSR at process start
  unsigned saved_;
#else
  std::fenv_t saved_;
#endif
};

}  // namespace transload::kernels
