// The smallest training run over the stand-in that still moves everything: one sample of eight tokens in the least
// memory, chunks smaller than a layer, so that whatever can be fetched late is.
#pragma once

#include <string>

#include "runtime.h"
#include "train/cuda/cuda_accelerator.h"
#include "train/run_cases.h"

namespace transload::testing {

/// Of runs of each of two models that differ in their delays alone: a sanitizer sees in a few what it sees in many, and
/// takes ten times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::uint64_t kSeeds = 3;
#else
inline constexpr std::uint64_t kSeeds = 25;
#endif

inline stand_in::Settings seeded_device(std::uint64_t seed, int most_delay_us) {
  stand_in::Settings settings;
  settings.device_bytes = 2 * GiB;
  settings.seed = seed;
  settings.most_delay_us = most_delay_us;
  return settings;
}

/// A fresh stand-in that runs with --device cuda train on.
inline void begin(const stand_in::Settings& settings) {
  stand_in::reset(settings);
  cuda::announce();
}

inline TrainOptions small_options(const std::string& model, Recompute recompute, const std::string& run) {
  RunCase c;
  c.model = model;
  c.device = DeviceKind::cuda;
  c.steps = 2;
  c.chunk = 16 * KiB;
  c.recompute = recompute;
  TrainOptions o = options_of(c, run);
  o.shape.batch = 1;
  o.shape.length = 8;
  begin({});
  o.device_memory = 128 * MiB;
  set_budget(o, 1);
  return o;
}

}  // namespace transload::testing
