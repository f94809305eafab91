// The texts and the JSON of what `transload plan` foretells, from plain records.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plan/closed_form.h"
#include "train/capacity.h"
#include "train/commit_cycle.h"

namespace transload::cli {

/// Memory by use, the time of a step, what binds, tokens that hide the links.
std::string forecast_text(const RunPlan& plan, const Forecast& forecast, const MachineRates& rates);
/// What commits move besides; empty where nothing is committed.
std::string commit_text(const CommitCycle& cycle, const TrainOptions& options, const Plan& plan);
std::string capacity_text(const Capacity& capacity);
std::string what_if_text(const std::vector<WhatIf>& table, std::uint64_t host_memory);
/// The best, why the one behind it lost, and the host memory that would do.
std::string search_text(const Search& search);

nlohmann::json forecast_json(const RunPlan& plan, const TrainOptions& options, const Forecast& forecast,
                             const CommitCycle& cycle, const MachineRates& rates);
nlohmann::json capacity_json(const Capacity& capacity);
nlohmann::json what_if_json(const std::vector<WhatIf>& table);
nlohmann::json search_json(const std::vector<Candidate>& candidates);

/// "1..4096": the first and the last number of ranks; InputError otherwise.
std::pair<std::uint64_t, std::uint64_t> parse_ranks(const std::string& text);
/// Rows of twice as many ranks each, from the first on; the last is always there.
std::vector<ClosedFormRow> ranks_rows(const ClosedForm& form, std::uint64_t first, std::uint64_t last);
std::string ranks_text(const std::vector<ClosedFormRow>& rows);
nlohmann::json ranks_json(const std::vector<ClosedFormRow>& rows);
/// One page that holds everything it shows: tokens a second over ranks, beside what computation alone would give.
std::string ranks_html(const ClosedForm& form, const std::vector<ClosedFormRow>& rows, const std::string& title);

}  // namespace transload::cli
