#include "report/run_model.h"

#include <algorithm>
#include <cmath>

namespace transload::report {

namespace {

constexpr std::size_t kWindow = 256;  // as the run's own summary
constexpr std::size_t kSettled = 8;   // steady steps before which the median says little

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The last steps, in a ring.
class Window {
 public:
  void add(const StepLine& step) {
    if (steps_.size() < kWindow)
      steps_.push_back(step);
    else
      steps_[next_++ % kWindow] = step;
  }
  void clear() {
    steps_.clear();
    next_ = 0;
  }
  bool empty() const { return steps_.empty(); }
  std::size_t size() const { return steps_.size(); }
  template <class Get>
  double median_of(const Get& get) const {
    std::vector<double> values;
    values.reserve(steps_.size());
    for (const StepLine& step : steps_) values.push_back(static_cast<double>(get(step)));
    return median(std::move(values));
  }

 private:
  std::vector<StepLine> steps_;
  std::size_t next_ = 0;
};

class ModelBuilder final : public RecordVisitor {
 public:
  explicit ModelBuilder(RunModel& model) : model_(model) {}

  void header(Header& header) override {
    model_.header = std::move(header);
    model_.shown.reset();
    model_.outlook.reset();
    steady_.clear();
    other_.clear();
    steps_of_process_ = 0;
  }

  void step(const StepLine& step, const StepEvents& events) override {
    add_totals(step);
    model_.series.add(step);
    if (model_.first_step == 0) {
      model_.first_step = step.step;
      model_.first_loss = step.loss;
    }
    model_.last_step = step.step;
    model_.last_loss = step.loss;
    ++steps_of_process_;
    const bool steady = is_steady(step);
    (steady ? steady_ : other_).add(step);
    if (!events.empty()) consider(step, events, steady);
  }

  void outlook(const Outlook& outlook) override { model_.outlook = outlook; }
  void commit(const Commit& commit) override {
    ++model_.totals.commits;
    model_.totals.commit_s += commit.seconds;
    model_.totals.commit_bytes += commit.written_bytes;
  }
  void evaluation(std::uint64_t step, double loss) override {
    if (model_.evaluations.size() == RunModel::kMostEvaluations) model_.evaluations.erase(model_.evaluations.begin());
    model_.evaluations.push_back({step, loss});
  }
  void note(const std::string& text) override {
    if (std::find(model_.notes.begin(), model_.notes.end(), text) != model_.notes.end()) return;
    if (model_.notes.size() < RunModel::kMostNotes)
      model_.notes.push_back(text);
    else
      ++model_.more_notes;
  }

  void finish() {
    Medians& m = model_.medians;
    const Window& window = steady_.empty() ? other_ : steady_;
    m.of_steps = window.size();
    m.steady = !steady_.empty();
    m.wall_s = 1e-9 * window.median_of([](const StepLine& s) { return s.wall_ns; });
    m.compute_s = 1e-9 * window.median_of([](const StepLine& s) { return s.compute_ns; });
    m.update_s = 1e-9 * window.median_of([](const StepLine& s) { return s.update_ns; });
    m.wait_s = 1e-9 * window.median_of([](const StepLine& s) { return s.wait_ns; });
    m.tokens = window.median_of([](const StepLine& s) { return s.tokens; });
    for (std::size_t i = 0; i < m.link_bytes.size(); ++i)
      m.link_bytes[i] = window.median_of([i](const StepLine& s) { return s.links[i].bytes; });
  }

 private:
  /// The drop-in optimizer's record does not say: its first step makes the state.
  bool is_steady(const StepLine& step) const {
    if (model_.header.optimizer) return steps_of_process_ > 1 && !step.deviated;
    return step.planned && !step.skipped;
  }

  void add_totals(const StepLine& step) {
    Totals& t = model_.totals;
    ++t.steps;
    t.skipped += step.skipped ? 1 : 0;
    t.deviated += step.deviated ? 1 : 0;
    t.deviations += step.deviations;
    t.hits += step.hits;
    t.late += step.late;
    t.demand += step.demand;
    t.wasted += step.wasted;
    t.wall_ns += step.wall_ns;
    t.wait_ns += step.wait_ns;
    t.tokens += step.tokens;
    t.peak_resident_bytes = std::max(t.peak_resident_bytes, step.resident_bytes);
    for (std::size_t i = 0; i < t.links.size(); ++i) {
      t.links[i].bytes += step.links[i].bytes;
      t.links[i].transfers += step.links[i].transfers;
      t.links[i].busy_ns += step.links[i].busy_ns;
    }
  }

  /// Steady before others; of steady ones the later while the run settles, then that which is nearer to the median.
  void consider(const StepLine& step, const StepEvents& events, bool steady) {
    if (model_.shown && model_.shown->steady && !steady) return;
    if (model_.shown && model_.shown->steady && steady_.size() >= kSettled) {
      const double middle = steady_.median_of([](const StepLine& s) { return s.wall_ns; });
      const auto off = [&](const StepLine& s) { return std::abs(static_cast<double>(s.wall_ns) - middle); };
      if (off(step) > off(model_.shown->line)) return;
    }
    model_.shown = ShownStep{step, events, steady};
  }

  RunModel& model_;
  Window steady_, other_;
  std::uint64_t steps_of_process_ = 0;
};

}  // namespace

RunModel read_model(const std::string& path, int rank) {
  RunModel model;
  model.path = path;
  model.rank = rank;
  ModelBuilder builder(model);
  model.facts = read_record(path, builder);
  builder.finish();
  return model;
}

}  // namespace transload::report
