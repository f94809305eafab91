#include "plan/joined.h"

namespace transload {

Trace join(std::span<const Trace* const> passes) {
  Trace all;
  for (const Trace* pass : passes) {
    const auto first = static_cast<std::uint32_t>(all.accesses.size());
    for (Access access : pass->accesses) {
      access.release_tick += first;
      all.accesses.push_back(access);
    }
    for (WorkspaceChange change : pass->workspace) {
      change.tick += first;
      all.workspace.push_back(change);
    }
  }
  all.backward_tick = static_cast<std::uint32_t>(all.accesses.size());
  return all;
}

}  // namespace transload
