// The report as text.
#include <fmt/format.h>

#include <algorithm>

#include "report/report.h"
#include "report/tables.h"

namespace transload::report {

namespace {

/// Columns of a terminal: code points, not bytes.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::vector<std::size_t> widths_of(const Table& table) {
  std::vector<std::size_t> widths;
  for (const std::string& text : table.head) widths.push_back(width_of(text));
  for (const auto& row : table.rows)
    for (std::size_t c = 0; c < row.size() && c < widths.size(); ++c)
      widths[c] = std::max(widths[c], width_of(row[c].text));
  return widths;
}

std::string line_of(const std::vector<std::string>& cells, const std::vector<std::size_t>& widths) {
  std::string line = " ";
  for (std::size_t c = 0; c < cells.size() && c < widths.size(); ++c) {
    const std::string blank(widths[c] - width_of(cells[c]), ' ');
    line += c == 0 ? fmt::format(" {}{}", cells[c], blank) : fmt::format("  {}{}", blank, cells[c]);
  }
  return line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

std::string text_of(const Table& table) {
  if (table.rows.empty()) return "";
  const std::vector<std::size_t> widths = widths_of(table);
  std::string text = fmt::format("\n{}\n", table.title);
  if (!table.says.empty()) text += fmt::format("  {}\n", table.says);
  if (std::any_of(table.head.begin(), table.head.end(), [](const auto& h) { return !h.empty(); }))
    text += line_of(table.head, widths);
  for (const auto& row : table.rows) {
    std::vector<std::string> cells;
    for (const Cell& cell : row) cells.push_back(cell.text);
    text += line_of(cells, widths);
  }
  return text;
}

}  // namespace

std::string text_page(const Report& report) {
  const RunModel& m = report.first();
  std::string text = fmt::format("{}\n", report.advice.sentence);
  for (const Table& table : {overview_table(m), parts_table(m), links_table(m), memory_table(m), fetches_table(m),
                             wear_table(m), outlook_table(m)})
    text += text_of(table);
  for (const Table& table : rank_tables(report.ranks)) text += text_of(table);
  text += text_of(environment_table(m));
  const std::vector<std::string> all = warnings(report);
  if (!all.empty()) text += "\nWarnings and notes\n";
  for (const std::string& warning : all) text += fmt::format("  {}\n", warning);
  return text;
}

std::string text_comparison(const Report& report, const Report& beside) {
  return fmt::format("{}: {}\n{}: {}\n{}", report.run, report.advice.sentence, beside.run, beside.advice.sentence,
                     text_of(comparison_table(report.first(), beside.first())));
}

}  // namespace transload::report
