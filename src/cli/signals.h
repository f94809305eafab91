// SIGINT and SIGTERM: the first asks for an orderly stop, the second leaves at once (exit code 130). The store is as
// last committed in both cases.
#pragma once

#include <atomic>

namespace transload::cli {

/// Installs the handlers; the counter is 0 until a signal comes.
const std::atomic<int>& watch_interrupts();

}  // namespace transload::cli
