// plan --ranks: the closed form as a table, as JSON and as a page with a plot.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/size.h"
#include "cli/forecast_text.h"
#include "cli/values.h"

namespace transload::cli {
namespace {

constexpr std::uint64_t kMostRanks = 1 << 20;
constexpr double kWidth = 720, kHeight = 420, kLeft = 80, kRight = 20, kTop = 20, kBottom = 50;

/// Both axes logarithmic.
class Plot {
 public:
  Plot(double first, double last, double least, double most)
      : x_(std::log2(first)),
        x_end_(std::max(std::log2(last), x_ + 1)),
        y_(std::log10(least)),
        y_end_(std::max(std::log10(most), y_ + 0.1)) {}

  double x(double ranks) const { return kLeft + (std::log2(ranks) - x_) / (x_end_ - x_) * (kWidth - kLeft - kRight); }
  double y(double tokens) const {
    return kHeight - kBottom - (std::log10(tokens) - y_) / (y_end_ - y_) * (kHeight - kTop - kBottom);
  }
  std::string line(const std::string& points, const char* style) const {
    return fmt::format("<polyline fill=\"none\" {} points=\"{}\"/>\n", style, points);
  }
  std::string axes() const {
    std::string svg = fmt::format("<path d=\"M{0} {1}V{2}H{3}\" fill=\"none\" stroke=\"#444\"/>\n", kLeft, kTop,
                                  kHeight - kBottom, kWidth - kRight);
    for (double x = std::ceil(x_); x <= x_end_; x += 1)
      svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.0f}</text>\n", this->x(std::exp2(x)),
                         kHeight - kBottom + 18, std::exp2(x));
    for (double y = std::ceil(y_); y <= y_end_; y += 1)
      svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">1e{:.0f}</text>\n", kLeft - 6,
                         this->y(std::pow(10, y)) + 4, y);
    return svg +
           fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">ranks</text>\n", kWidth / 2, kHeight - 10) +
           fmt::format("<text x=\"{}\" y=\"{}\">tokens/s</text>\n", 8, kTop + 4);
  }

 private:
  double x_, x_end_, y_, y_end_;
};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

double computed_alone(const ClosedForm& form, const ClosedFormRow& row) {
  return row.ranks * form.tokens / (row.forward_s + row.backward_s);
}

std::string svg_of(const ClosedForm& form, const std::vector<ClosedFormRow>& rows) {
  double least = rows[0].tokens_per_s, most = 0;
  for (const ClosedFormRow& row : rows) {
    least = std::min(least, row.tokens_per_s);
    most = std::max(most, computed_alone(form, row));
  }
  const Plot plot(rows.front().ranks, rows.back().ranks, least, most);
  std::string reached, alone, dots;
  for (const ClosedFormRow& row : rows) {
    const double x = plot.x(row.ranks), y = plot.y(row.tokens_per_s);
    reached += fmt::format("{:.1f},{:.1f} ", x, y);
    alone += fmt::format("{:.1f},{:.1f} ", x, plot.y(computed_alone(form, row)));
    dots +=
        fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>{:.0f} ranks: {}, then {}</title></circle>\n",
                    x, y, row.ranks, row.first_binds, row.second_binds);
  }
  return fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-size=\"12\">\n", kWidth,
                     kHeight) +
         plot.axes() + plot.line(alone, "stroke=\"#999\" stroke-dasharray=\"4\"") +
         plot.line(reached, "stroke=\"#06c\" stroke-width=\"2\"") + dots + "</svg>\n";
}

}  // namespace

std::pair<std::uint64_t, std::uint64_t> parse_ranks(const std::string& text) {
  const std::size_t dots = text.find("..");
  const std::uint64_t first = parse_count(text.substr(0, dots), "--ranks", 1);
  const std::uint64_t last = dots == std::string::npos ? first : parse_count(text.substr(dots + 2), "--ranks", 1);
  if (last < first) throw InputError(fmt::format("--ranks {}: the last number is below the first.", text));
  if (last > kMostRanks) throw InputError(fmt::format("--ranks {}: at most {} are computed.", text, kMostRanks));
  return {first, last};
}

std::vector<ClosedFormRow> ranks_rows(const ClosedForm& form, std::uint64_t first, std::uint64_t last) {
  std::vector<ClosedFormRow> rows;
  for (std::uint64_t n = first; n < last; n *= 2) rows.push_back(closed_form(form, static_cast<double>(n)));
  rows.push_back(closed_form(form, static_cast<double>(last)));
  return rows;
}

std::string ranks_text(const std::vector<ClosedFormRow>& rows) {
  std::string text =
      fmt::format("{:>6} {:>10} {:<15} {:>10} {:<15} {:>10} {:>12} {:>8} {:>14} {:>12}\n", "ranks", "forward", "binds",
                  "backward", "binds", "step", "tokens/s", "of peak", "state a rank", "tokens fit");
  for (const ClosedFormRow& r : rows)
    text += fmt::format("{:>6.0f} {:>10} {:<15} {:>10} {:<15} {:>10} {:>12.0f} {:>6.1f} % {:>14} {:>12.0f}\n", r.ranks,
                        format_duration(r.first_s), r.first_binds, format_duration(r.second_s), r.second_binds,
                        format_duration(r.step_s), r.tokens_per_s, 100 * r.model_utilisation,
                        format_size(static_cast<std::uint64_t>(r.state_bytes)), r.tokens_that_fit);
  return text;
}

nlohmann::json ranks_json(const std::vector<ClosedFormRow>& rows) {
  nlohmann::json out = nlohmann::json::array();
  for (const ClosedFormRow& r : rows)
    out.push_back({{"ranks", r.ranks},
                   {"state_bytes", r.state_bytes},
                   {"tokens_that_fit", r.tokens_that_fit},
                   {"forward_s", r.forward_s},
                   {"backward_s", r.backward_s},
                   {"pass_s", r.pass_s},
                   {"first_s", r.first_s},
                   {"first_binds", r.first_binds},
                   {"second_s", r.second_s},
                   {"second_binds", r.second_binds},
                   {"step_s", r.step_s},
                   {"tokens_per_s", r.tokens_per_s},
                   {"model_utilisation", r.model_utilisation}});
  return out;
}

std::string ranks_html(const ClosedForm& form, const std::vector<ClosedFormRow>& rows, const std::string& title) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{0}</title>\n"
      "<style>body{{font-family:sans-serif;max-width:960px;margin:2em auto}}pre{{overflow:auto}}</style>\n"
      "<h1>{0}</h1>\n<p>Computed by the closed form (docs/physics.md), not measured. Solid: tokens a second of all "
      "ranks; "
      "dashed: what computation alone would give. Hover over a point to see what "
      "binds.</p>\n{1}<pre>{2}</pre>\n</html>\n",
      escaped(title), svg_of(form, rows), escaped(ranks_text(rows)));
}

}  // namespace transload::cli
