// The table of the environment and of the paths in use: what the header says, as it says it.
#include <fmt/format.h>

#include "base/size.h"
#include "report/tables.h"

namespace transload::report {

namespace {

using Field = Header::Field;

/// Sizes and rates as people read them; everything else as it is.
std::string value_text(const Field& field) {
  switch (field.kind) {
    case Field::Kind::null:
      return "";
    case Field::Kind::truth:
      return field.text == "true" ? "yes" : "no";
    case Field::Kind::text:
      return field.text;
    case Field::Kind::number:
      break;
  }
  if (field.path.starts_with("rates.")) return field.number > 0 ? format_rate(field.number) : "not measured";
  const bool size = field.path.ends_with("bytes") || field.path == "chunk_size";
  return size ? format_size(static_cast<std::uint64_t>(field.number)) : field.text;
}

/// "paths.io_reason" → "paths: io reason".
std::string readable(const std::string& path) {
  std::string out;
  for (const char c : path) {
    if (c == '.')
      out += ": ";
    else
      out += c == '_' ? ' ' : c;
  }
  return out;
}

/// Those of the other tables, and what says nothing here.
bool elsewhere(const std::string& path) {
  return path == "format" || path.starts_with("links.") || path.starts_with("budgets.") || path.starts_with("least.");
}

}  // namespace

Table environment_table(const RunModel& model) {
  Table table{.id = "environment", .title = "Environment and paths in use", .head = {"", ""}};
  for (const Field& field : model.header.fields) {
    const std::string text = value_text(field);
    if (!text.empty() && !elsewhere(field.path))
      table.rows.push_back({{readable(field.path)}, {text, field.path, field.text}});
  }
  return table;
}

}  // namespace transload::report
