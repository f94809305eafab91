#include "report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/os.h"

namespace transload::report {

namespace {

/// The rank whose record a file of the run folder is.
std::optional<int> rank_of(std::string_view name) {
  constexpr std::string_view kFirst = "record.jsonl", kBegin = "record-r", kEnd = ".jsonl";
  if (name == kFirst) return 0;
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return std::nullopt;
  const std::string_view digits = name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size());
  int rank = 0;
  const auto [stopped, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  if (error != std::errc{} || stopped != digits.data() + digits.size() || rank < 1) return std::nullopt;
  return rank;
}

std::vector<std::string> in_folder(const std::string& folder) {
  std::vector<std::string> names;
  const std::int64_t result = os::list_folder(folder, &names);
  if (result < 0) throw IoError({.operation = "list", .path = folder, .block = {}, .error = static_cast<int>(-result)});
  std::vector<std::pair<int, std::string>> found;
  for (const std::string& name : names)
    if (const std::optional<int> rank = rank_of(name)) found.emplace_back(*rank, folder + "/" + name);
  std::sort(found.begin(), found.end());
  std::vector<std::string> files;
  for (auto& [rank, file] : found) files.push_back(std::move(file));
  return files;
}

}  // namespace

std::vector<std::string> record_files(const std::string& run) {
  switch (os::kind_of(run)) {
    case os::PathKind::file:
      return {run};
    case os::PathKind::folder: {
      std::vector<std::string> files = in_folder(run);
      if (files.empty())
        throw InputError(fmt::format("{} holds no record.jsonl: give the folder of a run, or a record's file.", run));
      return files;
    }
    case os::PathKind::missing:
      throw InputError(fmt::format("{} does not exist: give the folder of a run, or a record's file.", run));
    case os::PathKind::other:
    case os::PathKind::unreachable:
      break;
  }
  throw InputError(fmt::format("{} is neither a run folder nor a record's file that can be read.", run));
}

Report read_report(const std::string& run) {
  Report report{.run = run};
  int rank = 0;
  for (const std::string& file : record_files(run)) report.ranks.push_back(read_model(file, rank++));
  const auto slowest =
      std::max_element(report.ranks.begin(), report.ranks.end(),
                       [](const RunModel& a, const RunModel& b) { return a.medians.wall_s < b.medians.wall_s; });
  report.advice = advise(*slowest);
  return report;
}

}  // namespace transload::report
