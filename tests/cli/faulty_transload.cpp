// transload with a fault: the nth call of some kind fails or kills the process. For the end-to-end tests.
//   faulty_transload write|sync|rename|any N ENOSPC|EIO|kill TRANSLOAD-ARGUMENTS…
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/faults.h"
#include "cli/commands.h"

int main(int argc, char** argv) {
  namespace os = transload::os;
  if (argc < 4) return std::fprintf(stderr, "faulty_transload KIND N WHAT ARGUMENTS…\n"), 64;
  const std::string kind = argv[1], what = argv[3];
  const std::uint64_t nth = std::strtoull(argv[2], nullptr, 10);
  const os::OpFilter filter = kind == "write"    ? os::ops({os::OpKind::write})
                              : kind == "sync"   ? os::ops({os::OpKind::sync})
                              : kind == "rename" ? os::ops({os::OpKind::rename})
                                                 : os::changing_ops();
  const int error = what == "ENOSPC" ? ENOSPC : EIO;
  const os::InterceptScope scope(what == "kill" ? os::kill_at(filter, nth) : os::fail_at(filter, nth, -error, true));
  argv[3] = argv[0];
  return transload::cli::transload_main(argc - 3, argv + 3);
}
