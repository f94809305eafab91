#include "cli/console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

#include "base/size.h"

namespace transload::cli {
namespace {

constexpr double kSmoothing = 0.1;  // of the running mean of a step's time

std::string link_text(const StepReport& step) {
  const auto of = [&](Link l) { return step.link_bytes[static_cast<int>(l)]; };
  std::string text;
  if (of(Link::nvme_read) + of(Link::nvme_write) > 0)
    text += fmt::format("  nvme {} in, {} out", format_size(of(Link::nvme_read)), format_size(of(Link::nvme_write)));
  if (of(Link::host_to_device) + of(Link::device_to_host) > 0)
    text += fmt::format("  device {} in, {} out", format_size(of(Link::host_to_device)),
                        format_size(of(Link::device_to_host)));
  return text;
}

std::size_t terminal_width() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string step_line(const StepReport& step, double mean_step_s) {
  std::string line = fmt::format("step {}/{}", step.step, step.steps);
  line += step.skipped ? fmt::format("  loss {:.4f}  gradients not finite: nothing was changed", step.loss)
                       : fmt::format("  loss {:.4f}  norm {:.3f}", step.loss, step.norm);
  if (step.seconds > 0) line += fmt::format("  {:.0f} tokens/s", static_cast<double>(step.tokens) / step.seconds);
  if (step.steps > step.step)
    line += fmt::format("  {} left", format_duration(mean_step_s * static_cast<double>(step.steps - step.step)));
  line += fmt::format("  {} resident", format_size(step.resident_bytes));
  line += link_text(step);
  if (step.fraction_of_limit > 0) line += fmt::format("  {:.0f} % of limit", 100 * step.fraction_of_limit);
  return line;
}

Console::Console() : terminal_(::isatty(STDOUT_FILENO) == 1) {}

bool Console::due(Clock::duration gap) { return Clock::now() - last_print_ >= gap; }

void Console::show(const std::string& line, bool lasting) {
  last_print_ = Clock::now();
  if (!terminal_) {
    fmt::print("{}\n", line);
  } else {
    fmt::print("\r\033[K{}", lasting ? line : line.substr(0, terminal_width() - 1));
    if (lasting) fmt::print("\n");
    line_open_ = !lasting;
  }
  std::fflush(stdout);
}

void Console::say(const std::string& line) { show(line, true); }

void Console::progress(const std::string& what, std::uint64_t done, std::uint64_t total) {
  const bool first = what != last_what_;
  const bool last = done >= total;
  if (!first && !last && !due(terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(5))) return;
  last_what_ = last ? "" : what;
  const double percent = total == 0 ? 100 : 100.0 * static_cast<double>(done) / static_cast<double>(total);
  show(fmt::format("{}: {} of {} ({:.0f} %)", what, format_size(done), format_size(total), percent), false);
}

void Console::stepped(const StepReport& step) {
  mean_step_s_ = mean_step_s_ == 0 ? step.seconds : mean_step_s_ + kSmoothing * (step.seconds - mean_step_s_);
  const bool edge = last_step_ == 0 || step.step == step.steps || step.skipped;
  last_step_ = step.step;
  if (!edge && !due(terminal_ ? std::chrono::milliseconds(100) : std::chrono::seconds(1))) return;
  show(step_line(step, mean_step_s_), step.skipped);
}

void Console::finish_line() {
  if (!line_open_) return;
  fmt::print("\n");
  std::fflush(stdout);
  line_open_ = false;
}

}  // namespace transload::cli
