// For tests of law 1: the same code on every instruction set of this processor.
#pragma once

#include <hwy/targets.h>
#include <catch2/catch.hpp>
#include <cstdint>

/// Runs body once for each target of this processor, with dispatch set to it.
template <class Body>
void on_every_target(Body body) {
  const auto supported = static_cast<std::uint64_t>(hwy::SupportedTargets());
  for (std::uint64_t rest = supported; rest != 0; rest &= rest - 1) {
    const auto target = static_cast<std::int64_t>(rest & ~(rest - 1));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    INFO(hwy::TargetName(target));
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}
