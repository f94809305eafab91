// Monitor: heartbeats over the star by a thread of its own, and the verdict on who is lost.
//
// Each rank tells rank 0 that it lives and what it does, rank 0 tells all; so rank 0 judges the others, and each of
// them judges rank 0. Lost is whose connection ends without a word, who has sent nothing for `timeout`, and who said
// that it failed. The first verdict is kept, told to all and never changed; whoever waits learns it by check() or
// on_loss(). A rank that left in peace is not lost, but whoever still waits for it after `timeout` is told that it
// left.
//
// Threading: every function from any thread. The destructor ends the thread.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/star.h"

namespace transload {

/// More ranks than a host transport is meant for (its buffers and messages grow with them).
inline constexpr int kMostRanks = 1024;

class Monitor {
 public:
  Monitor(std::unique_ptr<Star> star, std::chrono::milliseconds timeout);
  ~Monitor();

  void publish(const Status& status);
  void fail(const std::string& why);
  /// This rank needs nobody any more. Returns when all say so, or one is lost, or after `timeout`.
  void leave();

  /// RankLostError where a rank is lost, or `waited_for` has left for good.
  void check(int waited_for);
  bool lost() const { return lost_.load(std::memory_order_acquire); }
  /// A transport failed towards `rank`: waits for the verdict that explains it, at most `timeout`; then gives it.
  [[noreturn]] void explain(int rank, const std::string& what);
  /// Called once, by the monitor's thread, when a rank is lost (at once where one is); it must not call the monitor.
  /// Returns a number for forget(), after which it is not called and not under way.
  int on_loss(std::function<void()> wake);
  void forget(int number);

  std::chrono::milliseconds timeout() const { return timeout_; }
  /// How long a rank that lives is waited for.
  std::chrono::milliseconds patience() const { return 10 * timeout_; }

 private:
  struct Impl;
  const std::chrono::milliseconds timeout_;
  std::atomic<bool> lost_{false};
  std::unique_ptr<Impl> impl_;
};

}  // namespace transload
