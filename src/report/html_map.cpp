#include <fmt/format.h>

#include <algorithm>

#include "report/html_plots.h"
#include "report/svg.h"

namespace transload::report {

namespace {

constexpr std::int32_t kMostRows = 200;  // more chunks than these share rows
constexpr int kRowHeight = 10;

/// Rows of the map: chunks in their order, then what belongs to none (kept layer inputs).
class Rows {
 public:
  explicit Rows(const std::vector<Block>& blocks) : row_of_block_(blocks.size(), 0) {
    for (const Block& block : blocks) chunks_ = std::max(chunks_, block.chunk + 1);
    std::int32_t next = chunks_;
    for (std::size_t b = 0; b < blocks.size(); ++b) row_of_block_[b] = blocks[b].chunk >= 0 ? blocks[b].chunk : next++;
    all_ = next;
  }
  std::int32_t count() const { return std::min(all_, kMostRows); }
  std::int32_t chunks() const { return chunks_; }
  std::int32_t of(std::uint32_t block) const {
    if (block >= row_of_block_.size()) return 0;
    const std::int32_t row = row_of_block_[block];
    return all_ <= kMostRows ? row : static_cast<std::int32_t>(std::int64_t{row} * kMostRows / all_);
  }
  double share_of_chunks() const { return all_ == 0 ? 0 : static_cast<double>(chunks_) / all_; }

 private:
  std::vector<std::int32_t> row_of_block_;
  std::int32_t chunks_ = 0, all_ = 0;
};

constexpr const char* kFound[] = {"none", "hit", "late", "demand"};
constexpr const char* kFoundTitles[] = {"made anew", "hit", "late", "on demand"};

}  // namespace

std::string chunk_map(const RunModel& model) {
  if (!model.shown || model.shown->events.accesses.empty() || model.header.blocks.empty()) return "";
  const std::vector<AccessLine>& accesses = model.shown->events.accesses;
  const Rows rows(model.header.blocks);
  std::uint32_t ticks = 1;
  for (const AccessLine& a : accesses) ticks = std::max(ticks, a.tick + 1);
  std::vector<RectanglePath> paths(4, RectanglePath(0, ticks, kRowHeight));
  std::uint64_t counts[4] = {};
  for (const AccessLine& a : accesses) {
    const auto found = static_cast<std::size_t>(a.found);
    paths[found].add(a.tick, std::max<std::int64_t>(a.tick + 1, a.tick + ticks / 400), rows.of(a.block));
    ++counts[found];
  }
  std::string inside;
  std::vector<LegendEntry> entries;
  for (std::size_t f = 0; f < 4; ++f) {
    if (paths[f].empty()) continue;
    inside += fmt::format("<path class=\"f-{}\" d=\"{}\"><title>{}: {}</title></path>", kFound[f], paths[f].d(),
                          kFoundTitles[f], counts[f]);
    entries.push_back({fmt::format("f-{}", kFound[f]), fmt::format("{} {}", kFoundTitles[f], counts[f])});
  }
  std::vector<AxisLabel> left{{1, "chunk 0"}, {1 - rows.share_of_chunks(), rows.share_of_chunks() < 1 ? "kept" : ""}},
      below;
  for (const double at : ticks_to(ticks, 5)) below.push_back({at / ticks, fmt::format("{:.0f}", at)});
  std::string scale;
  for (const AxisLabel& at : left)
    scale += fmt::format("<span style=\"bottom:{:.2f}%\">{}</span>", 100 * at.share, at.text);
  const int height = rows.count() * kRowHeight;
  return fmt::format(
             "<div class=\"plot\"><div class=\"scale\">{}</div><svg role=\"img\" aria-label=\"chunks and ticks\" "
             "viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" style=\"height:{}px\">{}</svg>{}</div>",
             scale, RectanglePath::kUnits, height, std::clamp(rows.count() * 7, 90, 480), inside, axis(below)) +
         legend(entries);
}

}  // namespace transload::report
