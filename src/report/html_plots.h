// The page's drawings, each of one idea. All take a rank's model and give HTML; empty where the record holds nothing to
// draw, and the page says so.
#pragma once

#include <string>

#include "report/run_model.h"

namespace transload::report {

/// The step's time as a bar of parts that add up to it, with the lower bound as a mark.
std::string parts_bar(const RunModel& model);
/// Memory of each tier over the step, stacked by use, the budget as a line.
std::string memory_plots(const RunModel& model);
/// A lane for each link and processor, and waits coloured by cause.
std::string timeline_lanes(const RunModel& model);
/// Bytes of each link in a step, planned and least.
std::string link_bars(const RunModel& model);
/// Chunks × ticks: what was used when, coloured by how it was found.
std::string chunk_map(const RunModel& model);
/// Time of each step of the run.
std::string step_series_plot(const RunModel& model);

}  // namespace transload::report
