// bench_recording: what it costs that a run records itself: the timeline of every step in memory, and lines of events
// for the first three steps and each hundredth. The limit: 1 % of a step.
//   bench_recording [ROUNDS [PART-OF-A-SETTING'S-NAME]]
// Twice: what one event costs in a loop of its own, times the events of a step; and the same small model trained with
// and without recording in turn, each round one run with it and two without, which show what equal runs differ by. A
// step is timed from the end of the last one, so that lines written after it count. The engine's sums of memory by use
// are kept in both.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/size.h"
#include "trace/run_record.h"
#include "train/recording_access.h"
#include "train/temp_folder.h"
#include "train/trainer.h"

namespace transload {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kSteps = 20, kFirstPlanned = 2, kWritten = 3;  // of a run; the first three are written
constexpr int kVocabulary = 512;
constexpr double kLimit = 0.01;

struct Setting {
  std::string name;
  int hidden, layers, batch, length;
  std::uint64_t chunk;
  double budget;  ///< times the least accepted; 0: everything in memory
};
const Setting kSettings[] = {
    {"all in memory", 256, 4, 2, 64, 512 * KiB, 0},
    {"all in memory, chunks of 16 KiB", 256, 4, 2, 64, 16 * KiB, 0},
    {"NVMe binds, chunks of 16 KiB", 256, 4, 1, 64, 16 * KiB, 1.1},
};

/// Of one step, by kind.
struct Events {
  double accesses = 0, spans = 0, joined = 0, waits = 0, samples = 0;
  double count() const { return accesses + spans + joined + waits + samples; }
};

/// What one of each takes, ns.
struct Costs {
  double access = 0, span = 0, joined = 0, wait = 0, sample = 0;
  double of(const Events& e) const {
    return e.accesses * access + e.spans * span + e.joined * joined + e.waits * wait + e.samples * sample;
  }
};

/// `part` of them are smaller.
double quantile(std::vector<double> all, double part) {
  std::sort(all.begin(), all.end());
  return all[static_cast<std::size_t>(static_cast<double>(all.size() - 1) * part)];
}

/// The quickest of some passes, a call.
template <class Prepare, class Call>
double ns_of(int calls, const Prepare& prepare, const Call& call) {
  double best = 1e300;
  for (int pass = 0; pass < 20; ++pass) {
    prepare();
    const std::uint64_t start = host_clock_ns();
    for (int i = 0; i < calls; ++i) call(i);
    best = std::min(best, static_cast<double>(host_clock_ns() - start) / calls);
  }
  return best;
}

/// Nothing behind the recording; its pins hold nothing.
class NoAccess final : public BlockAccess {
 public:
  Pin pin(BlockId, Tier, AccessKind) override { return {}; }
  void unpin(Pin, Stream&) override {}
  std::byte* workspace(Tier, std::uint64_t) override { return nullptr; }
  void begin_backward() override {}
  bool dry() const override { return false; }
};

Costs measure_costs() {
  constexpr int kCalls = 10'000;
  Timeline timeline({.spans = kCalls, .waits = kCalls, .samples = kCalls});
  NoAccess nothing;
  RecordingAccess access(nothing, kCalls);
  const auto begin = [&] {
    timeline.begin();
    access.begin_step(false);
  };
  const auto at = [](int i) { return static_cast<std::uint64_t>(i) * 100; };
  Costs costs;
  costs.access = ns_of(
      kCalls, begin, [&](int i) { access.pin(BlockId(static_cast<std::uint32_t>(i)), Tier::host, AccessKind::read); });
  costs.span =
      ns_of(kCalls, begin, [&](int i) { timeline.add(Span{.begin_ns = at(i), .end_ns = at(i + 1), .bytes = 1}); });
  costs.joined =
      ns_of(kCalls, begin, [&](int i) { timeline.add(Span{.begin_ns = at(i), .end_ns = at(i + 1), .name = "work"}); });
  costs.wait = ns_of(kCalls, begin, [&](int) { const WaitNote note(&timeline, {}); });
  costs.sample = ns_of(kCalls, begin, [&](int) { timeline.add(MemorySample{.at_ns = host_clock_ns()}); });
  return costs;
}

/// A line of a step like this one, ns.
double measure_line(const Events& events, const std::string& path) {
  Timeline timeline({.spans = 1 << 16, .waits = 1 << 16, .samples = 1 << 16});
  timeline.begin();
  std::vector<AccessEvent> accesses(static_cast<std::size_t>(events.accesses),
                                    {.start_ns = 1'234'567, .wait_ns = 1'000});
  for (double i = 0; i < events.spans; ++i)
    timeline.add(Span{.begin_ns = 1'234'567, .end_ns = 2'345'678, .bytes = 16384});
  for (double i = 0; i < events.waits; ++i) timeline.add(Wait{.begin_ns = 1'234'567, .end_ns = 2'345'678});
  for (double i = 0; i < events.samples; ++i) {
    MemorySample sample{.at_ns = 1'234'567, .used_bytes = 12'345'678};
    std::fill_n(sample.bytes.begin(), 6, 1'234'567);
    timeline.add(sample);
  }
  timeline.end();
  RunRecord record(path, {.every = 1, .event_bytes = UINT64_MAX});
  const double lines = events.count() - events.joined;
  return ns_of(
             5, [] {}, [&](int) { record.write_step(1, false, "", accesses, &timeline); }) /
         lines;
}

void write_inputs(const Setting& s, const TempFolder& folder) {
  const int heads = s.hidden / 64;
  const Json config = {{"model_type", "llama"},          {"architectures", {"LlamaForCausalLM"}},
                       {"hidden_size", s.hidden},        {"intermediate_size", 3 * s.hidden},
                       {"num_hidden_layers", s.layers},  {"num_attention_heads", heads},
                       {"num_key_value_heads", heads},   {"vocab_size", kVocabulary},
                       {"max_position_embeddings", 512}, {"rms_norm_eps", 1e-5},
                       {"rope_theta", 10000.0},          {"tie_word_embeddings", true}};
  folder.write("config.json", config.dump());
  std::vector<std::uint16_t> ids(100'000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint16_t>(i * i % kVocabulary);
  folder.write("tokens.bin", std::string(reinterpret_cast<const char*>(ids.data()), 2 * ids.size()));
}

TrainOptions options_of(const Setting& s, const TempFolder& folder) {
  TrainOptions o;
  o.model = folder.path();
  o.data = folder.path("tokens.bin");
  o.run = folder.path("run");
  o.shape = {.batch = s.batch, .length = s.length, .accumulate = 1, .recompute = Recompute::layer};
  o.steps = kSteps;
  o.chunk_size = s.chunk;
  o.threads = 1;  // whatever else the machine does has processors of its own
  o.host_memory = 1 * GiB;
  if (s.budget == 0) return o;
  const RunPlan plan = Trainer(o, {}).plan();
  o.host_memory =
      round_up(static_cast<std::uint64_t>(static_cast<double>(plan.least_host_bytes) * s.budget), plan.frame_bytes);
  return o;
}

/// The quicker ones, which others disturbed least, s: of planned steps whose events are written, and of those whose are
/// not.
struct StepTimes {
  double written = 0, unwritten = 0;
};

StepTimes train(TrainOptions o, bool record) {
  std::filesystem::remove_all(o.run);
  o.record_events = record;
  std::vector<double> written, unwritten;
  Clock::time_point last;
  Observer observer;
  observer.stepped = [&](const StepReport& step) {
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - last).count();
    last = now;
    if (step.step >= kFirstPlanned) (step.step <= kWritten ? written : unwritten).push_back(seconds);
  };
  Trainer trainer(o, observer);
  const std::atomic<int> interrupt{0};
  trainer.run(interrupt);
  return {quantile(written, 0), quantile(unwritten, 0.25)};
}

/// Of the last step with events in the record of the run before.
Events events_of(const std::string& run) {
  Events e;
  std::ifstream file(run + "/record.jsonl");
  for (std::string text; std::getline(file, text);) {
    const Json line = Json::parse(text);
    if (line.value("step", std::uint64_t{0}) != kWritten) continue;
    const std::string event = line["event"];
    e.accesses += event == "access";
    e.spans += event == "span";
    e.joined += event == "span" ? line.value("tasks", 1) - 1 : 0;
    e.waits += event == "wait";
    e.samples += event == "memory";
    if (event == "step" && line["events_lost"] > 0) fmt::print("  {} events had no room\n", line["events_lost"].dump());
  }
  return e;
}

std::string percent(double part) {
  return fmt::format("{:+.2f} %{}", 100 * part, part > kLimit ? " (above the limit)" : "");
}

/// "+0.12 % (quartiles -0.50 and +0.70)".
std::string ratios(const std::vector<double>& all) {
  const auto at = [&](double part) { return 100 * (quantile(all, part) - 1); };
  return fmt::format("{:+.2f} % (quartiles {:+.2f} and {:+.2f})", at(0.5), at(0.25), at(0.75));
}

/// Of each round: on against off, and off against off, which shows what equal runs differ by.
struct Rounds {
  std::vector<double> step_s, unwritten, written, equal;
  Events events;
};

Rounds run_rounds(const TrainOptions& options, int rounds) {
  Rounds out;
  for (int round = 0; round < rounds; ++round) {
    StepTimes times[3];  // with recording; without; without
    for (int i = 0; i < 3; ++i) {
      const int which = (i + round) % 3;
      times[which] = train(options, which == 0);
      if (which == 0) out.events = events_of(options.run);
    }
    const auto& [on, off, again] = times;
    const double unwritten = (off.unwritten + again.unwritten) / 2, written = (off.written + again.written) / 2;
    out.step_s.push_back(unwritten);
    out.unwritten.push_back(on.unwritten / unwritten);
    out.written.push_back(on.written / written);
    out.equal.push_back(again.unwritten / off.unwritten);
  }
  return out;
}

void measure(const Setting& s, int rounds, const Costs& costs) {
  const TempFolder folder;
  write_inputs(s, folder);
  const Rounds r = run_rounds(options_of(s, folder), rounds);
  const Events& e = r.events;
  const double step = quantile(r.step_s, 0.5), noted_ns = costs.of(e), lines = e.count() - e.joined;
  const double line_ns = measure_line(e, folder.path("lines")), lines_part = lines * line_ns * 1e-9 / step;
  fmt::print(
      "{}: a step of {:.2f} ms; {:.0f} events, {:.0f} accesses, {:.0f} spans of {:.0f} tasks, {:.0f} waits, {:.0f} of "
      "memory\n",
      s.name, step * 1e3, e.count(), e.accesses, e.spans, e.spans + e.joined, e.waits, e.samples);
  fmt::print("  noted:   {:.0f} ns an event, {} of a step\n", noted_ns / e.count(), percent(noted_ns * 1e-9 / step));
  fmt::print("  written: {:.0f} lines, {:.0f} ns each, {:.2f} % of such a step, {} over a hundred steps\n", lines,
             line_ns, 100 * lines_part, percent(lines_part / 100));
  fmt::print("  {} rounds: on against off {}; off against off {}; where lines are written {}\n", rounds,
             ratios(r.unwritten), ratios(r.equal), ratios(r.written));
}

}  // namespace
}  // namespace transload

int main(int argc, char** argv) {
  using namespace transload;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  const std::string part = argc > 2 ? argv[2] : "";
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // rounds take minutes
  const Costs costs = measure_costs();
  fmt::print("Noting one: access {:.0f}, span {:.0f}, span that goes on {:.0f}, wait {:.0f}, memory {:.0f} ns\n",
             costs.access, costs.span, costs.joined, costs.wait, costs.sample);
  for (const Setting& setting : kSettings)
    if (setting.name.find(part) != std::string::npos) measure(setting, rounds, costs);
}
