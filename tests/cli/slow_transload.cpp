// transload on a drive of a stated speed: reads and writes of the store's slots take turns, each in its direction, and
// take as long as their bytes do at the rate. So a run is bound by what a test wants it to be, on any machine.
//   slow_transload READ-BYTES/S WRITE-BYTES/S TRANSLOAD-ARGUMENTS…    (with --io threads)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include "base/faults.h"
#include "cli/commands.h"

namespace {

using Clock = std::chrono::steady_clock;

/// One direction of the drive: its transfers follow one another.
class SlowDirection {
 public:
  explicit SlowDirection(double rate) : rate_(rate) {}
  void transfer(std::uint64_t bytes) {
    if (rate_ <= 0) return;
    const auto takes =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(static_cast<double>(bytes) / rate_));
    std::unique_lock lock(mutex_);
    free_at_ = std::max(free_at_, Clock::now()) + takes;
    const auto until = free_at_;
    lock.unlock();
    std::this_thread::sleep_until(until);
  }

 private:
  std::mutex mutex_;
  const double rate_;
  Clock::time_point free_at_{};
};

}  // namespace

int main(int argc, char** argv) {
  namespace os = transload::os;
  if (argc < 4) return std::fprintf(stderr, "slow_transload READ-BYTES/S WRITE-BYTES/S ARGUMENTS…\n"), 64;
  SlowDirection reads(std::strtod(argv[1], nullptr)), writes(std::strtod(argv[2], nullptr));
  const os::InterceptScope scope([&](const os::IoOp& op) -> std::optional<std::int64_t> {
    if (std::string_view(op.path).find("slots-") == std::string_view::npos) return std::nullopt;
    if (op.kind == os::OpKind::read) reads.transfer(op.bytes);
    if (op.kind == os::OpKind::write) writes.transfer(op.bytes);
    return std::nullopt;
  });
  argv[2] = argv[0];
  return transload::cli::transload_main(argc - 2, argv + 2);
}
