// The tables of a report, made once and written as text and as HTML. A cell whose number comes from the record has a
// key and its exact value, so that a page can be checked against the record.
#pragma once

#include <string>
#include <vector>

#include "report/ranks.h"
#include "report/report.h"

namespace transload::report {

struct Cell {
  std::string text;
  std::string key, value;  ///< empty where it is not a number of the record
};

struct Table {
  std::string id, title;
  std::string says;  ///< one sentence under the title; may be empty
  std::vector<std::string> head;
  std::vector<std::vector<Cell>> rows;  ///< the first column are names; other columns stand at the right
};

Table overview_table(const RunModel& model);
Table parts_table(const RunModel& model);
Table links_table(const RunModel& model);
Table memory_table(const RunModel& model);
Table fetches_table(const RunModel& model);
Table wear_table(const RunModel& model);
Table outlook_table(const RunModel& model);
Table environment_table(const RunModel& model);
std::vector<Table> rank_tables(const std::vector<RunModel>& ranks);
Table comparison_table(const RunModel& one, const RunModel& other);

/// Everything that a reader should know besides: advice's further sentences, the run's notes, what is missing.
std::vector<std::string> warnings(const Report& report);

}  // namespace transload::report
