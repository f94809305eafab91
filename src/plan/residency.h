// Where each block is at the end of a planned step, in the steady state: for people, who ask what lives where.
#pragma once

#include <vector>

#include "base/trace_types.h"

namespace transload {

/// By block: the highest tier that holds it at the step's end; nvme where neither device nor host does, or where the
/// block is dead by then.
std::vector<Tier> residency(const Trace& trace, const Plan& plan, std::size_t blocks);

}  // namespace transload
