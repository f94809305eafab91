// Faults for tests: a process-wide interceptor of the calls of os.h, and ready-made ones.
//
//   InterceptScope scope(fail_at(ops({OpKind::write}), 3, -EIO));      // the third write fails
//   InterceptScope scope(kill_at(ops({OpKind::sync, OpKind::rename}), 2));  // the process dies before the second
//
// An interceptor is called from many threads at once. Put one in and take it out only while no call is under way.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>

#include "base/os.h"

namespace transload::os {

using Interceptor = std::function<std::optional<std::int64_t>(const IoOp&)>;

/// Puts the interceptor in; the destructor restores the one before.
class InterceptScope {
 public:
  explicit InterceptScope(Interceptor interceptor);
  ~InterceptScope();
  InterceptScope(const InterceptScope&) = delete;
  InterceptScope& operator=(const InterceptScope&) = delete;

 private:
  Interceptor interceptor_;
  const Interceptor* previous_;
};

/// Which calls are meant: kinds, and a part of the path (empty: any).
struct OpFilter {
  std::uint32_t kinds = UINT32_MAX;
  std::string path_part;
  bool matches(const IoOp& op) const;
};
OpFilter ops(std::initializer_list<OpKind> kinds, std::string path_part = "");
/// Those that change what is on disk: open (creates), write, sync, rename, remove, make_folder, allocate, truncate.
OpFilter changing_ops();

/// Counts matching calls.
Interceptor count_into(OpFilter filter, std::shared_ptr<std::atomic<std::uint64_t>> count);
/// The nth matching call (from 1) answers `result`; `sticky`: and every later one.
Interceptor fail_at(OpFilter filter, std::uint64_t nth, std::int64_t result, bool sticky = false);
/// Asks the first, and where it says nothing, the second.
Interceptor either(Interceptor first, Interceptor second);
/// SIGKILL to this process instead of the nth matching call (from 1).
Interceptor kill_at(OpFilter filter, std::uint64_t nth);

}  // namespace transload::os
