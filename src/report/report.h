// A run as its records tell it: one record a rank, side by side in the run folder; and what is made of them.
// Everything here sees records alone: no store, no settings file, no summary.
#pragma once

#include <string>
#include <vector>

#include "report/advice.h"
#include "report/attribution.h"
#include "report/run_model.h"

namespace transload::report {

struct Report {
  std::string run;              ///< as the user named it
  std::vector<RunModel> ranks;  ///< at least one
  Advice advice;                ///< of the slowest rank
  const RunModel& first() const { return ranks.front(); }
};

/// The records of a run folder (record.jsonl, record-r1.jsonl, …), or one record by its file, in order of ranks.
/// InputError where there is none.
std::vector<std::string> record_files(const std::string& run);

/// InputError, IoError.
Report read_report(const std::string& run);

/// The page: one self-contained HTML file. `beside` may be null: a run to compare with.
std::string html_page(const Report& report, const Report* beside);
std::string text_page(const Report& report);
std::string text_comparison(const Report& report, const Report& beside);

/// Chrome trace events, for Perfetto, of every step that has events; written as the records are read.
void write_trace(const std::string& run, const std::string& path);

}  // namespace transload::report
