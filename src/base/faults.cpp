#include "base/faults.h"

#include <signal.h>
#include <unistd.h>

#include <string_view>
#include <utility>

namespace transload::os {
namespace {
std::atomic<const Interceptor*> current{nullptr};
}

std::optional<std::int64_t> intercept(const IoOp& op) {
  const Interceptor* interceptor = current.load(std::memory_order_acquire);
  if (interceptor == nullptr) [[likely]]
    return std::nullopt;
  return (*interceptor)(op);
}

InterceptScope::InterceptScope(Interceptor interceptor) : interceptor_(std::move(interceptor)) {
  previous_ = current.exchange(&interceptor_);
}
InterceptScope::~InterceptScope() { current.store(previous_); }

bool OpFilter::matches(const IoOp& op) const {
  const bool kind = (kinds >> static_cast<unsigned>(op.kind) & 1u) != 0;
  return kind && (path_part.empty() || std::string_view(op.path).find(path_part) != std::string_view::npos);
}

OpFilter ops(std::initializer_list<OpKind> kinds, std::string path_part) {
  OpFilter filter{0, std::move(path_part)};
  for (OpKind kind : kinds) filter.kinds |= 1u << static_cast<unsigned>(kind);
  return filter;
}

OpFilter changing_ops() {
  return ops({OpKind::open, OpKind::write, OpKind::sync, OpKind::rename, OpKind::remove, OpKind::make_folder,
              OpKind::allocate, OpKind::truncate});
}

Interceptor count_into(OpFilter filter, std::shared_ptr<std::atomic<std::uint64_t>> count) {
  return [filter = std::move(filter), count = std::move(count)](const IoOp& op) -> std::optional<std::int64_t> {
    if (filter.matches(op)) ++*count;
    return std::nullopt;
  };
}

Interceptor fail_at(OpFilter filter, std::uint64_t nth, std::int64_t result, bool sticky) {
  return [filter = std::move(filter), nth, result, sticky,
          seen = std::make_shared<std::atomic<std::uint64_t>>(0)](const IoOp& op) -> std::optional<std::int64_t> {
    if (!filter.matches(op)) return std::nullopt;
    const std::uint64_t number = ++*seen;
    if (number == nth || (sticky && number > nth)) return result;
    return std::nullopt;
  };
}

Interceptor either(Interceptor first, Interceptor second) {
  return [first = std::move(first), second = std::move(second)](const IoOp& op) -> std::optional<std::int64_t> {
    if (const auto said = first(op)) return said;
    return second(op);
  };
}

Interceptor kill_at(OpFilter filter, std::uint64_t nth) {
  return [filter = std::move(filter), nth,
          seen = std::make_shared<std::atomic<std::uint64_t>>(0)](const IoOp& op) -> std::optional<std::int64_t> {
    if (filter.matches(op) && ++*seen == nth) ::kill(::getpid(), SIGKILL);
    return std::nullopt;
  };
}

}  // namespace transload::os
