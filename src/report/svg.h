// Pieces of SVG and HTML that the page's plots are made of. Plots are stretched to the page's width (their labels are
// HTML beside them), so one drawing serves a phone, a screen and paper; nothing needs JavaScript.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace transload::report {

/// For HTML text and attributes.
std::string escaped(std::string_view text);

/// Many intervals as one path of rectangles, as wide as kUnits from `begin` to `end`: what lies closer than a unit is
/// joined, so the path is bounded however many intervals there are. Rows are numbered from above.
class RectanglePath {
 public:
  static constexpr std::int64_t kUnits = 6000;
  RectanglePath(std::int64_t begin, std::int64_t end, int row_height) : begin_(begin), end_(end), height_(row_height) {}

  void add(std::int64_t from, std::int64_t to, std::int32_t row = 0);
  bool empty() const { return pieces_.empty(); }
  /// The "d" of a path; empty where nothing was added.
  std::string d() const;

 private:
  struct Piece {
    std::int32_t row, x, end_x;
  };
  std::int64_t begin_, end_;
  int height_;
  std::vector<Piece> pieces_;
};

/// Round numbers of an axis from 0 to `most`: about `count` of them.
std::vector<double> ticks_to(double most, int count);

struct AxisLabel {
  double share = 0;  ///< of the axis, 0 to 1
  std::string text;
};
std::vector<AxisLabel> time_labels(double seconds);
std::vector<AxisLabel> size_labels(std::uint64_t bytes);

/// A drawing with labels at its left and below it; `inside` are SVG elements in a box of kUnits × kPlotHeight.
inline constexpr int kPlotHeight = 1000;
std::string plot(std::string_view label, std::string_view inside, const std::vector<AxisLabel>& left,
                 const std::vector<AxisLabel>& below);
/// Labels along a horizontal axis.
std::string axis(const std::vector<AxisLabel>& labels);

struct LegendEntry {
  std::string colour;  ///< the class that colours it
  std::string text;
};
std::string legend(const std::vector<LegendEntry>& entries);

}  // namespace transload::report
