#include "cli/plan_text.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <filesystem>

#include "base/size.h"

namespace transload::cli {
namespace {

// What makers state for a consumer drive; data-centre drives stand five times as much and more.
constexpr double kEnduranceBytesPerByte = 600;

/// The nearest folder above that exists: the run folder may not be there yet.
std::filesystem::path existing_parent(std::filesystem::path path) {
  std::error_code error;
  path = std::filesystem::absolute(path, error);
  while (!std::filesystem::exists(path, error) && path.has_relative_path()) path = path.parent_path();
  return path;
}

std::uint64_t drive_bytes(const std::string& folder) {
  struct statvfs fs {};
  if (::statvfs(existing_parent(folder).c_str(), &fs) != 0) return 0;
  return static_cast<std::uint64_t>(fs.f_blocks) * fs.f_frsize;
}

std::string count_text(std::uint64_t parameters) {
  const auto n = static_cast<double>(parameters);
  return n >= 1e9   ? fmt::format("{:.2f} G", n / 1e9)
         : n >= 1e6 ? fmt::format("{:.1f} M", n / 1e6)
                    : fmt::format("{}", parameters);
}

/// "12345", "1.08 billion": a count that is an estimate.
std::string about_text(double n) {
  if (n < 1e6) return fmt::format("{:.0f}", n);
  if (n < 0.9995e9) return fmt::format("{:.3g} million", n / 1e6);
  if (n < 0.9995e12) return fmt::format("{:.3g} billion", n / 1e9);
  return "more than a trillion";
}

/// A time that may be hours or centuries.
std::string long_time_text(double seconds) {
  constexpr double kDay = 86400, kYear = 365.25 * kDay;
  if (seconds < 2 * kDay) return format_duration(seconds);
  if (seconds < 14 * kDay) return fmt::format("{:.1f} days", seconds / kDay);
  if (seconds < 2 * kYear) return fmt::format("{:.0f} weeks", seconds / (7 * kDay));
  if (seconds < 1000 * kYear) return fmt::format("{:.0f} years", seconds / kYear);
  return "more than a thousand years";
}

std::string head_line(const RunPlan& plan, const TrainOptions& options) {
  const std::string trained =
      plan.trainable == plan.parameters ? "" : fmt::format(" ({} trained)", count_text(plan.trainable));
  const char* weights = options.dtype == Dtype::bf16 ? "bf16 weights with an exact fp32 master" : "fp32 weights";
  return fmt::format("{}: {} parameters{}, {}, {} of {}\n", options.model, count_text(plan.parameters), trained,
                     weights, plan.chunks == 1 ? "1 chunk" : fmt::format("{} chunks", plan.chunks),
                     format_size(plan.chunk_size));
}

bool three_tiers(const RunPlan& plan) { return plan.budgets.device_bytes > 0; }

/// Planes × where they live at the end of a step. What no tier above holds is on NVMe.
std::string plane_table(const RunPlan& plan) {
  const bool device = three_tiers(plan);
  std::string text = fmt::format("  {:<12}{:>12}{}{:>14}{:>12}\n", "plane", "bytes", device ? "   on device" : "",
                                 "in host", "on NVMe");
  const bool written = plan.plan.bytes[static_cast<int>(Link::nvme_write)] > 0;
  for (const RunPlan::PlaneRow& row : plan.planes) {
    // What lives within a step alone is nowhere at its end, unless it was written.
    const bool below = row.durable || written;
    const std::uint64_t above = below ? std::min(row.bytes, row.device_bytes + row.host_bytes) : row.bytes;
    text += fmt::format("  {:<12}{:>12}", row.plane, format_size(row.bytes));
    if (device) text += fmt::format("{:>12}", format_size(row.device_bytes));
    text += fmt::format("{:>14}{:>12}{}\n", format_size(row.host_bytes), format_size(row.bytes - above),
                        row.durable ? "" : "  within a step only");
  }
  return text;
}

std::string link_table(const RunPlan& plan) {
  std::string text = fmt::format("  {:<18}{:>14}{:>14}{:>8}\n", "a step moves", "planned", "least", "ratio");
  for (int i = 0; i < kLinks; ++i) {
    const auto link = static_cast<Link>(i);
    const bool of_device = link == Link::host_to_device || link == Link::device_to_host;
    if (of_device && !three_tiers(plan)) continue;
    const std::uint64_t bytes = plan.plan.bytes[i];
    const std::uint64_t least = plan.plan.lower_bound[i];
    const std::string ratio =
        least > 0 ? fmt::format("{:.2f}", static_cast<double>(bytes) / static_cast<double>(least)) : "-";
    text += fmt::format("  {:<18}{:>14}{:>14}{:>8}\n", name_of(link), format_size(bytes), format_size(least), ratio);
  }
  return text;
}

std::string updates_text(const RunPlan& plan) {
  if (!three_tiers(plan)) return {};
  return fmt::format("  updates: {} of {} chunks on the device\n", plan.device_updates, plan.updated_chunks);
}

std::string budget_table(const RunPlan& plan) {
  std::string text = fmt::format("  {:<18}{:>14}{:>14}{:>14}\n", "budget", "taken", "least", "planned peak");
  const auto row = [&text](const char* name, std::uint64_t given, std::uint64_t least, std::uint64_t peak) {
    text +=
        fmt::format("  {:<18}{:>14}{:>14}{:>14}\n", name, format_size(given), format_size(least), format_size(peak));
  };
  if (three_tiers(plan)) row("device", plan.budgets.device_bytes, plan.least_device_bytes, plan.plan.peak_bytes[0]);
  row("host", plan.budgets.host_bytes, plan.least_host_bytes, plan.plan.peak_bytes[1]);
  return text;
}

/// What holds a step back as far as a plan without measured rates can say.
std::string binds_text(const RunPlan& plan) {
  const std::uint64_t nvme =
      plan.plan.bytes[static_cast<int>(Link::nvme_read)] + plan.plan.bytes[static_cast<int>(Link::nvme_write)];
  const std::uint64_t device =
      plan.plan.bytes[static_cast<int>(Link::host_to_device)] + plan.plan.bytes[static_cast<int>(Link::device_to_host)];
  const std::uint64_t all = plan.durable_bytes + plan.transient_bytes;
  if (nvme == 0 && device == 0) return "Everything stays where it is computed: computation binds.\n";
  if (nvme == 0) return "Everything fits in host memory: computation or the device link binds.\n";
  return fmt::format(
      "Host memory binds: {} of state and of what a step keeps do not fit in {}. More --host-memory moves less.\n",
      format_size(all + plan.workspace_bytes), format_size(plan.budgets.host_bytes));
}

std::string store_text(const RunPlan& plan, const TrainOptions& options) {
  if (options.nvme_capacity == 0) return "No store (--nvme-capacity 0): nothing is committed, no resuming.\n";
  return fmt::format(
      "Store: {} in {}{}\n", format_size(plan.store_bytes), options.nvme.empty() ? options.run : options.nvme,
      options.durable ? ", second slots for commits included" : "; --durability none: a crash loses the run");
}

std::string notes_text(const RunPlan& plan) {
  std::string text;
  for (const std::string& note : plan.notes) text += fmt::format("Note: {}\n", note);
  return text;
}

std::string trimmed(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

double endurance_bytes(const std::string& folder) {
  return kEnduranceBytesPerByte * static_cast<double>(drive_bytes(folder));
}

std::string wear_text(const Wear& wear, const std::string& folder, double step_s, std::uint64_t steps) {
  const std::string whose = wear.ranks > 1 ? fmt::format(" by the {} ranks that share the drive", wear.ranks) : "";
  const char* commits = wear.commits ? "commits included" : "commits are extra";
  if (wear.step_bytes <= 0) return fmt::format("Nothing is written to NVMe in a step ({}).\n", commits);
  const std::uint64_t drive = drive_bytes(folder);
  std::string text = fmt::format("{} are written to NVMe a step{} ({})",
                                 format_size(static_cast<std::uint64_t>(wear.step_bytes)), whose, commits);
  if (drive == 0) return text + ".\n";
  const double steps_left = kEnduranceBytesPerByte * static_cast<double>(drive) / wear.step_bytes;
  const double percent = 100 * static_cast<double>(steps) / steps_left;
  text += fmt::format(
      "; these {} steps use {} of a drive of {} that is rated for 600 TB written per TB (an assumption: "
      "look up yours). It would last {} steps",
      steps, percent < 0.01 ? "less than 0.01 %" : fmt::format("{:.2g} %", percent), format_size(drive),
      about_text(steps_left));
  if (step_s > 0)
    text +=
        fmt::format(", {} without a pause at {} a step", long_time_text(steps_left * step_s), format_duration(step_s));
  return text + ".\n";
}

Wear steps_alone(std::uint64_t rank_bytes, const TrainOptions& options) {
  return {.step_bytes = static_cast<double>(rank_bytes) * options.ranks_here,
          .ranks = static_cast<int>(options.ranks_here)};
}

std::string start_text(const RunPlan& plan, const TrainOptions& options) {
  std::string text = head_line(plan, options) + plane_table(plan) + updates_text(plan);
  text += budget_table(plan) + link_table(plan);
  text += store_text(plan, options);
  if (options.nvme_capacity != 0)
    text += wear_text(steps_alone(plan.plan.bytes[static_cast<int>(Link::nvme_write)], options),
                      options.nvme.empty() ? options.run : options.nvme, 0, options.steps);
  return trimmed(text + notes_text(plan));
}

std::string plan_text(const RunPlan& plan, const TrainOptions& options) {
  std::string text = head_line(plan, options);
  if (const Shards& s = options.shards; s.count > 1)
    text += fmt::format("Rank {} of {}: what follows is its own part.\n", s.rank, s.count);
  text += plane_table(plan);
  text += fmt::format("  durable {}, within a step {}, workspace {}\n", format_size(plan.durable_bytes),
                      format_size(plan.transient_bytes), format_size(plan.workspace_bytes));
  text += updates_text(plan) + link_table(plan) + budget_table(plan) + binds_text(plan) + store_text(plan, options);
  return text + notes_text(plan);
}

}  // namespace transload::cli
