// From a line of the record to what it says. A line that lacks what the event cannot do without is refused (false);
// what else is missing keeps its default, so records of other versions are read as far as they go.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "report/events.h"
#include "report/flat_line.h"

namespace transload::report {

using Json = nlohmann::json;

bool parse_access(const FlatLine& line, AccessLine& access);
bool parse_span(const FlatLine& line, StepEvents& events, SpanLine& span);
bool parse_wait(const FlatLine& line, WaitLine& wait);
bool parse_memory(const FlatLine& line, MemoryLine& memory);

bool parse_step(const Json& line, StepLine& step);
void parse_header(Json&& line, Header& header);
void parse_outlook(const Json& line, Outlook& outlook);
void parse_commit(const Json& line, Commit& commit);

/// A whole number that is not negative; 0 where there is none.
std::uint64_t whole_of(const Json& object, const char* key);
double number_of(const Json& object, const char* key);

}  // namespace transload::report
