// Several passes as one trace, one after the other: what is planned together.
#pragma once

#include <span>

#include "base/trace_types.h"

namespace transload {

/// Ticks count on from pass to pass; workspace stays as the pass before left it. It has no backward of its own.
Trace join(std::span<const Trace* const> passes);

}  // namespace transload
