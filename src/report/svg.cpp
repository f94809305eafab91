#include "report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/size.h"

namespace transload::report {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

void RectanglePath::add(std::int64_t from, std::int64_t to, std::int32_t row) {
  const double scale = static_cast<double>(kUnits) / static_cast<double>(std::max<std::int64_t>(1, end_ - begin_));
  const auto unit = [&](std::int64_t at, auto round) {
    return static_cast<std::int32_t>(
        std::clamp<double>(round(static_cast<double>(at - begin_) * scale), 0, static_cast<double>(kUnits)));
  };
  const std::int32_t x = unit(from, [](double v) { return std::floor(v); });
  const std::int32_t end_x = std::max(x + 1, unit(to, [](double v) { return std::round(v); }));
  if (!pieces_.empty() && pieces_.back().row == row && pieces_.back().end_x >= x && pieces_.back().x <= x) {
    pieces_.back().end_x = std::max(pieces_.back().end_x, end_x);
    return;
  }
  pieces_.push_back({row, x, end_x});
}

std::string RectanglePath::d() const {
  std::vector<Piece> sorted = pieces_;
  std::sort(sorted.begin(), sorted.end(),
            [](const Piece& a, const Piece& b) { return a.row != b.row ? a.row < b.row : a.x < b.x; });
  std::string out;
  for (std::size_t i = 0; i < sorted.size();) {
    Piece piece = sorted[i++];
    for (; i < sorted.size() && sorted[i].row == piece.row && sorted[i].x <= piece.end_x; ++i)
      piece.end_x = std::max(piece.end_x, sorted[i].end_x);
    fmt::format_to(std::back_inserter(out), "M{} {}h{}v{}h{}z", piece.x, piece.row * height_, piece.end_x - piece.x,
                   height_, piece.x - piece.end_x);
  }
  return out;
}

std::vector<double> ticks_to(double most, int count) {
  if (!(most > 0)) return {0};
  const double rough = most / count, power = std::pow(10, std::floor(std::log10(rough)));
  double step = power;
  for (const double factor : {1.0, 2.0, 5.0, 10.0})
    if ((step = power * factor) >= rough) break;
  std::vector<double> out;
  for (double at = 0; at <= most * 1.0001; at += step) out.push_back(at);
  return out;
}

std::vector<AxisLabel> time_labels(double seconds) {
  if (!(seconds > 0)) return {{0, "0 ms"}};
  std::vector<AxisLabel> out;
  const double scale = seconds < 1 ? 1000 : 1;
  for (const double at : ticks_to(seconds * scale, 5))
    out.push_back({at / (seconds * scale), fmt::format("{:g} {}", at, seconds < 1 ? "ms" : "s")});
  return out;
}

std::vector<AxisLabel> size_labels(std::uint64_t bytes) {
  const std::uint64_t unit = bytes >= GiB ? GiB : bytes >= MiB ? MiB : KiB;
  const char* name = unit == GiB ? "GiB" : unit == MiB ? "MiB" : "KiB";
  const double most = static_cast<double>(bytes) / static_cast<double>(unit);
  std::vector<AxisLabel> out;
  for (const double at : ticks_to(most, 4)) out.push_back({most > 0 ? at / most : 0, fmt::format("{:g} {}", at, name)});
  return out;
}

std::string axis(const std::vector<AxisLabel>& labels) {
  std::string out = "<div class=\"axis\">";
  for (const AxisLabel& label : labels)  // near the right edge they end where they would else be cut
    out += fmt::format("<span{} style=\"left:{:.2f}%\">{}</span>", label.share > 0.95 ? " class=\"end\"" : "",
                       100 * label.share, escaped(label.text));
  return out + "</div>";
}

std::string plot(std::string_view label, std::string_view inside, const std::vector<AxisLabel>& left,
                 const std::vector<AxisLabel>& below) {
  std::string out = "<div class=\"plot\"><div class=\"scale\">";
  std::string grid;
  for (const AxisLabel& at : left) {
    out += fmt::format("<span style=\"bottom:{:.2f}%\">{}</span>", 100 * at.share, escaped(at.text));
    grid +=
        fmt::format("<path class=\"grid\" d=\"M0 {:.0f}H{}\"/>", kPlotHeight * (1 - at.share), RectanglePath::kUnits);
  }
  out += fmt::format(
      "</div><svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\">{}{}</svg>{}</div>",
      escaped(label), RectanglePath::kUnits, kPlotHeight, inside, grid, axis(below));
  return out;
}

std::string legend(const std::vector<LegendEntry>& entries) {
  std::string out = "<ul class=\"legend\">";
  for (const LegendEntry& entry : entries)
    out += fmt::format("<li><i class=\"{}\"></i>{}</li>", entry.colour, escaped(entry.text));
  return out + "</ul>";
}

}  // namespace transload::report
