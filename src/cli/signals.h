// SIGINT and SIGTERM: the first asks for an orderly stop, the second leaves at once (exit code 130). The store is as
// last committed in both cases. SIGHUP, where it is not ignored, asks for an orderly stop too.
#pragma once

#include <atomic>

namespace transload::cli {

/// Installs the handlers; the counter is 0 until a signal comes. Of many ranks one `says` what was asked for.
const std::atomic<int>& watch_interrupts(bool says = true);

/// Before anything is opened: standard streams that the caller closed lead nowhere (a file of the store must not get
/// their numbers), a reader of the output that goes away does not end a run, and a limit of the size of files is an
/// error of the write, not a signal.
void prepare_process();

}  // namespace transload::cli
