// train: settings in, texts out, signals between.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/size.h"
#include "cli/among_ranks.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/lost_rank.h"
#include "cli/plan_text.h"
#include "cli/signals.h"
#include "cli/summary_text.h"

namespace transload::cli {
namespace {

Observer observe(Console& console) {
  Observer o;
  o.say = [&console](const std::string& line) { console.say(line); };
  o.progress = [&console](const std::string& what, std::uint64_t done, std::uint64_t total) {
    console.progress(what, done, total);
  };
  o.stepped = [&console](const StepReport& step) { console.stepped(step); };
  o.evaluated = [&console](std::uint64_t step, double loss) {
    console.say(fmt::format("step {}: validation loss {:.4f}", step, loss));
  };
  o.committed = [&console](std::uint64_t step, double seconds) {
    console.say(fmt::format("step {}: committed in {}", step, format_duration(seconds)));
  };
  return o;
}

/// For a POSIX shell: as it is where that is safe, else in single quotes.
std::string shell_word(const std::string& text) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,:=+@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string resume_hint(const TrainOptions& options) {
  if (options.nvme_capacity == 0) return "There is no store (--nvme-capacity 0): this run cannot be resumed.";
  return fmt::format("To go on: transload train --run {} --resume", shell_word(options.run));
}

/// What a run that ended because of another rank left on disk.
const char* what_is_left(const TrainOptions& options) {
  if (options.nvme_capacity == 0) return "";
  return options.durable ? " The stores are as last committed."
                         : " Stores kept with --durability none can be opened again only after a clean end.";
}

}  // namespace

/// One rank of several that does not print. `begun`: the run folder and its inputs are in order.
int train_silently(const TrainOptions& options, Communicator& communicator, const std::atomic<int>& interrupts,
                   bool& begun) {
  Trainer trainer(options, {}, &communicator);
  begun = true;
  const nlohmann::json summary = nlohmann::json::parse(trainer.run(interrupts));
  return summary.value("interrupted", false) ? kInterrupted : kDone;
}

int train(const TrainOptions& options, Communicator& communicator, const std::atomic<int>& interrupts, bool& begun) {
  if (communicator.rank() > 0) return train_silently(options, communicator, interrupts, begun);
  Console console;
  if (const std::string lost = take_lost_rank(options.run); !lost.empty())
    console.say("The last start of this run ended early: " + lost);
  Trainer trainer(options, observe(console), &communicator);
  begun = true;
  console.say(start_text(trainer.plan(), trainer.options()));
  const nlohmann::json summary = nlohmann::json::parse(trainer.run(interrupts));
  console.finish_line();
  fmt::print("{}", summary_text(summary, trainer.options()));
  if (!summary.value("interrupted", false)) return kDone;
  fmt::print("Interrupted after step {} of {}. {}\n", summary.value("steps_seen", 0), trainer.options().steps,
             resume_hint(trainer.options()));
  return kInterrupted;
}

int run_train(const TrainOptions& options) {
  const Launch launch = detect_launch();
  const std::atomic<int>& interrupts = watch_interrupts(launch.place.rank == 0);
  bool begun = false;
  return among_ranks(
      launch, options, [&](Communicator& communicator) { return train(options, communicator, interrupts, begun); },
      [&](const RankLostError& error) {
        if (begun) keep_lost_rank(options.run, error.what());  // a start that was refused may name another's folder
        return what_is_left(options);
      });
}

}  // namespace transload::cli
