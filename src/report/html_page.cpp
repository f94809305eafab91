// The page: one file without scripts, fonts, images or addresses; drawings are SVG, everything else text and tables.
#include <fmt/format.h>

#include <algorithm>

#include "report/html_plots.h"
#include "report/page_style.h"
#include "report/report.h"
#include "report/svg.h"
#include "report/tables.h"

namespace transload::report {

namespace {

std::string cell_html(const Cell& cell, const std::string& swatch) {
  const std::string colour = swatch.empty() ? "" : fmt::format("<i class=\"{}\"></i>", swatch);
  if (cell.key.empty()) return fmt::format("<td>{}{}</td>", colour, escaped(cell.text));
  return fmt::format("<td data-key=\"{}\" data-value=\"{}\">{}{}</td>", escaped(cell.key), escaped(cell.value), colour,
                     escaped(cell.text));
}

/// The colour of a row of the table of parts is that of its part in the bar.
std::string swatch_of(const std::vector<Cell>& row) {
  constexpr std::string_view kPart = "part.";
  return row.size() > 1 && row[1].key.starts_with(kPart) ? "c-" + row[1].key.substr(kPart.size()) : "";
}

std::string table_html(const Table& table) {
  if (table.rows.empty()) return "<p class=\"empty\">Nothing of this is in the record.</p>";
  const bool named = std::any_of(table.head.begin(), table.head.end(), [](const auto& h) { return !h.empty(); });
  std::string out = table.says.empty() ? "" : fmt::format("<p class=\"says\">{}</p>", escaped(table.says));
  out += fmt::format("<div class=\"wide\"><table id=\"{}\"{}>", table.id, named ? "" : " class=\"two\"");
  if (named) {
    out += "<thead><tr>";
    for (const std::string& head : table.head) out += fmt::format("<th scope=\"col\">{}</th>", escaped(head));
    out += "</tr></thead>";
  }
  out += "<tbody>";
  for (const auto& row : table.rows) {
    const std::string swatch = swatch_of(row);
    out += "<tr>";
    for (std::size_t c = 0; c < row.size(); ++c) out += cell_html(row[c], c == 0 ? swatch : "");
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>";
}

/// A drawing, or a word that there is nothing to draw.
std::string drawing(const std::string& html) {
  return html.empty() ? "<p class=\"empty\">This record has no events to draw it from.</p>" : html;
}

std::string section(const std::string& id, const std::string& title, const std::string& inside) {
  return fmt::format("<section id=\"s-{}\"><h2>{}</h2>{}</section>\n", id, escaped(title), inside);
}

std::string section(const Table& table, const std::string& before = "") {
  return section(table.id, table.title, before + table_html(table));
}

std::string warnings_html(const Report& report) {
  std::string items;
  for (const std::string& text : warnings(report)) items += fmt::format("<li>{}</li>", escaped(text));
  return items.empty() ? "<p>None.</p>" : "<ul class=\"notes\">" + items + "</ul>";
}

std::string step_text(const RunModel& m) {
  return m.shown ? fmt::format("<p class=\"says\">Step {}{}.</p>", m.shown->line.step,
                               m.shown->steady ? ", of the steady state" : "")
                 : "";
}

std::string rank_sections(const Report& report) {
  std::string out;
  for (const Table& table : rank_tables(report.ranks)) out += section(table);
  if (report.ranks.size() < 2) return out;
  std::string lanes;
  for (std::size_t r = 1; r < report.ranks.size() && r < 8; ++r)
    lanes += fmt::format("<h3>rank {}</h3>{}", report.ranks[r].rank, drawing(timeline_lanes(report.ranks[r])));
  return out + section("rank-lanes", "The other ranks' steps", lanes);
}

std::string sections(const Report& report, const Report* beside) {
  const RunModel& m = report.first();
  std::string out = section(parts_table(m), parts_bar(m));
  out += section("tiers", "Memory over a step", step_text(m) + drawing(memory_plots(m)) + table_html(memory_table(m)));
  out += section("timeline", "One step", step_text(m) + drawing(timeline_lanes(m)));
  out += section(links_table(m), link_bars(m));
  out +=
      section("map", "Chunks and ticks",
              "<p class=\"says\">Each access of the step: which chunk (downwards), when (to the right), how its bytes "
              "were found.</p>" +
                  drawing(chunk_map(m)));
  out += section(fetches_table(m)) + section(outlook_table(m)) + rank_sections(report);
  if (beside != nullptr)
    out += section(
        comparison_table(m, beside->first()),
        fmt::format("<p class=\"says\">The other: {}. {}</p>", escaped(beside->run), escaped(beside->advice.sentence)));
  out += section(overview_table(m), step_series_plot(m));
  out += section(wear_table(m)) + section("warnings", "Warnings and notes", warnings_html(report));
  return out + section(environment_table(m));
}

/// Flags are not broken behind their dashes.
std::string sentence_html(const std::string& sentence) {
  std::string out = escaped(sentence);
  for (std::size_t at = 0; (at = out.find("--", at)) != std::string::npos;) {
    const std::size_t end = std::min(out.find_first_of(" ),.;", at), out.size());
    const std::string flag = fmt::format("<span class=\"flag\">{}</span>", out.substr(at, end - at));
    out.replace(at, end - at, flag);
    at += flag.size();
  }
  return out;
}

/// What the sentence says, as exact numbers.
std::string remedy_values(const Advice& advice) {
  if (!advice.remedy) return "";
  return fmt::format(" data-value=\"{}\" data-saves=\"{:.9f}\"", escaped(advice.remedy->what.value),
                     advice.remedy->saves_s);
}

}  // namespace

std::string html_page(const Report& report, const Report* beside) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><link rel=\"icon\" href=\"data:,\"><title>{0}: Transload "
      "report</title>"
      "<style>{1}</style></head><body>\n<h1>{0}</h1>\n<p id=\"advice\"{4}>{2}</p>\n{3}</body></html>\n",
      escaped(report.run), kPageStyle, sentence_html(report.advice.sentence), sections(report, beside),
      remedy_values(report.advice));
}

}  // namespace transload::report
