// Which instruction sets the Highway kernels of this folder are compiled for: AVX-512, AVX2 and plain scalar code.
// Included before hwy/highway.h. What lies between (SSE4, VBMI2 extensions) would cost compile time and gain nothing.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
