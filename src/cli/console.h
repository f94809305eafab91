// What a person sees while a run goes on. On a terminal one line is rewritten; elsewhere plain lines are printed, at
// most one a second besides the first and the last step, so that a log stays readable. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "train/trainer.h"

namespace transload::cli {

class Console {
 public:
  Console();
  /// A plain line; a progress line that is being rewritten is taken away first.
  void say(const std::string& line);
  /// Bytes of something long: "laying out the store", "loading weights".
  void progress(const std::string& what, std::uint64_t done, std::uint64_t total);
  void stepped(const StepReport& step);
  /// Ends the line that is being rewritten, so that it stays.
  void finish_line();

 private:
  using Clock = std::chrono::steady_clock;
  bool due(Clock::duration gap);
  void show(const std::string& line, bool lasting);

  bool terminal_;
  bool line_open_ = false;
  Clock::time_point last_print_{};
  std::string last_what_;
  double mean_step_s_ = 0;
  std::uint64_t last_step_ = 0;
};

/// "step 12/100  loss 5.5123  norm 1.234  2133 tokens/s  3 min left  1.2 GiB resident  nvme 210/190 MiB  71 % of limit"
std::string step_line(const StepReport& step, double mean_step_s);

}  // namespace transload::cli
