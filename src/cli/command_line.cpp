// transload train | plan | report | probe | verify | export | launch.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <new>
#include <system_error>

#include "base/error.h"
#include "cli/box.h"
#include "cli/commands.h"
#include "cli/nearest.h"
#include "cli/settings.h"
#include "cli/signals.h"

namespace transload::cli {
namespace {

const char* const kTrainExamples =
    "Examples:\n"
    "  transload train --model llama-60m --data book.txt --run runs/first --host-memory 512MiB --steps 200\n"
    "  transload train --model ./Qwen2-0.5B --data tokens.bin --run /mnt/nvme/qwen --host-memory 2GiB --dtype bf16 \\\n"
    "                  --batch-size 4 --sequence-length 512 --learning-rate 1e-5 --commit-every 10min\n"
    "  transload train --run runs/first --resume --steps 400\n"
    "  transload train --config run.toml --host-memory 1GiB      (flags win over the file)\n"
    "  transload train --model gpt2-124m --data book.txt --run runs/box --device emulated --device-memory 256MiB \\\n"
    "                  --host-memory 1GiB --link-rate 12GB/s\n"
    "Sizes: 2GiB is 2 x 2^30 bytes, 2GB is 2 x 10^9, a bare number is bytes. Interrupt once to stop after the step,\n"
    "committed; twice to leave at once.";
const char* const kPlanExamples =
    "Takes the flags of train; takes no memory and writes nothing but what --probe measured, to the cache folder.\n"
    "Examples:\n"
    "  transload plan --model llama-1b --data book.txt --run runs/big --host-memory 1536MiB\n"
    "  transload plan --config run.toml --device emulated --device-memory 1GiB\n"
    "  transload plan --model llama-7b --data book.txt --box examples/boxes/rtx4090.toml --search\n"
    "  transload plan --model llama-7b --data book.txt --box examples/boxes/rtx4090.toml --ranks 1..4096 --html "
    "ranks.html";

/// The flags of a command that takes settings (train, plan).
struct SettingsCommand {
  CLI::App* app = nullptr;
  std::map<std::string, std::vector<std::string>> values;
  std::map<std::string, int> switches;
  std::vector<std::string> config;
};

void add_settings(SettingsCommand& command) {
  command.app->add_option("--config", command.config, "TOML file with the same names; flags win")
      ->type_name("FILE.toml")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  for (const Setting& s : settings()) {
    if (s.placeholder.empty())
      command.app->add_flag("--" + s.name, command.switches[s.name], s.help)->group(s.group);
    else
      command.app->add_option("--" + s.name, command.values[s.name], s.help)
          ->type_name(s.placeholder)
          ->group(s.group)
          ->expected(1)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
          ->allow_extra_args(false);
  }
}

GivenSettings flags_of(const SettingsCommand& command) {
  GivenSettings flags;
  for (const auto& [name, count] : command.switches)
    if (count > 0) flags[name] = {{"true"}, "--" + name};
  for (const auto& [name, values] : command.values) {
    if (values.empty()) continue;
    if (values.size() > 1 && !find_setting(name, "--" + name, "--").repeats)
      throw InputError(fmt::format("--{} is given twice: {} and {}.", name, values[0], values[1]));
    flags[name] = {values, "--" + name};
  }
  return flags;
}

GivenSettings config_of(const SettingsCommand& command) {
  if (command.config.size() > 1) throw InputError("--config is given twice; one file is read.");
  return command.config.empty() ? GivenSettings{} : read_toml(command.config.front());
}

/// What CLI11 could not place: an unknown flag or a word too many.
void refuse_extras(const CLI::App& app) {
  const std::vector<std::string> extras = app.remaining();
  if (extras.empty()) return;
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) known.push_back(name);
  std::string word = extras.front();
  if (word.starts_with("-")) {
    word = word.substr(0, word.find('='));
    const std::string bare = word.substr(std::min(word.find_first_not_of('-'), word.size()));
    throw InputError(fmt::format("The flag {} is not known.{} 'transload {} --help' lists all flags.", word,
                                 did_you_mean(bare, known, "--"), app.get_name()));
  }
  throw InputError(
      fmt::format("'{}' is one word too many. 'transload {} --help' shows what is expected.", word, app.get_name()));
}

std::string need(const std::vector<std::string>& words, const std::string& what) {
  if (words.empty() || words.front().empty()) throw InputError(what + " is missing.");
  if (words.size() > 1) throw InputError(fmt::format("{} is given twice: {} and {}.", what, words[0], words[1]));
  return words.front();
}

/// What such a command found is its output: without it, it has failed.
int whole_output(int code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  fmt::print(stderr, "transload: standard output could not be written whole{}{}.\n", errno == 0 ? "" : ": ",
             errno == 0 ? "" : std::strerror(errno));
  return code == kDone ? kFailed : code;
}

class CommandLine {
 public:
  CommandLine() : app_("Trains models that are larger than the memory they are given.", "transload") {
    app_.footer("'transload COMMAND --help' shows the flags of a command, with examples.");
    app_.prefix_command(false);
    app_.set_version_flag("--version", "transload " TRANSLOAD_VERSION, "Print the version");
    train_.app = command("train", "train or fine-tune a model under memory budgets", kTrainExamples);
    add_settings(train_);
    plan_.app = command("plan", "say what fits, where each byte lives and what moves; no training", kPlanExamples);
    add_settings(plan_);
    add_plan();
    add_probe();
    add_verify();
    add_export();
    add_launch();
    add_report();
    app_.allow_extras();
  }

  int run(int argc, char** argv) {
    argc = take_launched(argc, argv);
    try {
      app_.parse(argc, argv);
    } catch (const CLI::Success& e) {  // --help
      return app_.exit(e);
    } catch (const CLI::ParseError& e) {
      throw InputError(fmt::format("{}. 'transload --help' shows what is expected.", e.what()));
    }
    const std::vector<CLI::App*> commands = app_.get_subcommands();
    const std::vector<std::string> words = app_.remaining();
    if (commands.size() > 1)
      throw InputError(fmt::format("'{}' is one word too many: {} is the command.", commands[1]->get_name(),
                                   commands[0]->get_name()));
    for (CLI::App* sub : commands) {
      refuse_extras(*sub);
      if (!words.empty())
        throw InputError(fmt::format("'{}' stands before the command; flags and words come after '{}'.", words.front(),
                                     sub->get_name()));
      return dispatch(sub->get_name());
    }
    if (words.empty()) throw InputError("A command is missing: train, plan, report, probe, verify, export or launch.");
    throw InputError(fmt::format(
        "The command '{}' is not known.{}", words.front(),
        did_you_mean(words.front(), {"train", "plan", "report", "probe", "verify", "export", "launch"}, "")));
  }

 private:
  CLI::App* command(const std::string& name, const std::string& help, const std::string& footer) {
    CLI::App* sub = app_.add_subcommand(name, help);
    sub->footer(footer);
    sub->allow_extras();
    return sub;
  }

  void add_plan() {
    const std::string group = "The plan";
    plan_.app->add_option("--box", asked_.box, "a machine that is not this one; examples/boxes has some")
        ->type_name("FILE.toml")
        ->group(group);
    plan_.app->add_option("--ranks", asked_.ranks, "table of the closed form for so many ranks, such as 1..4096")
        ->type_name("A..B")
        ->group(group);
    plan_.app->add_option("--html", asked_.html, "the table of --ranks as a page with a plot")
        ->type_name("FILE")
        ->group(group);
    plan_.app
        ->add_flag("--search", asked_.search,
                   "chunk size, recomputation, micro-batch and (emulated here) split of memory for the most tokens/s")
        ->group(group);
    plan_.app->add_flag("--probe", asked_.probe, "measure this machine for this plan first (seconds), and keep it")
        ->group(group);
    plan_.app->add_flag("--json", asked_.json, "as JSON")->group(group);
  }
  TrainOptions train_options() { return resolve(flags_of(train_), config_of(train_), ""); }
  /// A box gives the budgets that neither flag nor file names.
  PlanArguments plan_arguments() {
    PlanArguments arguments = asked_;
    GivenSettings flags = flags_of(plan_), config = config_of(plan_);
    if (!asked_.box.empty()) {
      flags.insert(config.begin(), config.end());
      config.clear();
      fill_from_box(read_box(asked_.box), flags);
    }
    arguments.options = resolve(flags, config, "a-run-to-come");
    return arguments;
  }

  void add_probe() {
    CLI::App* sub =
        command("probe", "measure this machine and say what is missing",
                "Writes at most 1 GiB to a temporary file in each folder and removes it.\n"
                "Examples:\n  transload probe\n  transload probe --nvme /mnt/nvme --nvme /mnt/other --json");
    sub->add_option("--nvme", probe_.nvme, "folder to measure; may be repeated")
        ->type_name("DIR")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->allow_extra_args(false);
    sub->add_flag("--json", probe_.json, "as JSON");
  }
  void add_verify() {
    CLI::App* sub = command("verify", "read every block of a run's last commit and check it",
                            "Exit code 1 and one line for each damaged block where something is not as committed.\n"
                            "Example:\n  transload verify runs/first --fingerprint");
    sub->add_option("RUN", run_words_, "run folder")->expected(0, -1);
    sub->add_flag("--fingerprint", verify_.fingerprint,
                  "print a hash of master, moments and step counts by name and element: the same for every placement");
  }
  void add_export() {
    CLI::App* sub = command("export", "write the last commit as a Hugging Face folder",
                            "Examples:\n  transload export runs/first --to exported\n"
                            "  transload export runs/first --to exported --master --optimizer");
    sub->add_option("RUN", run_words_, "run folder")->expected(0, -1);
    sub->add_option("--to", to_words_, "folder to write; must be new or empty")
        ->type_name("DIR")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->allow_extra_args(false);
    sub->add_flag("--master", export_.master, "the fp32 master instead of the training type");
    sub->add_flag("--optimizer", export_.optimizer, "also optimizer.safetensors: moments and step counts");
  }

  void add_launch() {
    CLI::App* sub =
        command("launch", "start ranks on this machine: transload launch -n N -- train …",
                "Where mpirun, torchrun or srun start the ranks, transload train is all that is needed.\n"
                "Example:\n  transload launch -n 4 -- train --model llama-60m --data book.txt --run runs/four");
    sub->add_option("-n", launch_.ranks, "ranks")->type_name("N")->required();
  }
  /// What follows `launch … --` is the ranks' command line, not ours. Returns how many words are.
  int take_launched(int argc, char** argv) {
    if (argc < 2 || std::string(argv[1]) != "launch") return argc;
    char** const end = argv + argc;
    char** const dashes = std::find_if(argv, end, [](const char* word) { return std::string(word) == "--"; });
    if (dashes != end) launch_.words.assign(dashes + 1, end);
    return static_cast<int>(dashes - argv);
  }

  void add_report() {
    CLI::App* sub = command("report", "show what a run did and what held it back",
                            "Prints the report where no file is asked for. Reads the record alone, also of a run that "
                            "is going on or was killed; RUN may be a record's file, such as the drop-in optimizer's.\n"
                            "Examples:\n  transload report runs/first\n"
                            "  transload report runs/first --html first.html --trace first.json\n"
                            "  transload report runs/first --compare runs/second");
    sub->add_option("RUN", run_words_, "run folder, or a record's file")->expected(0, -1);
    add_word(sub, "--html", html_words_, "FILE", "write the page: one file, no network, no scripts");
    add_word(sub, "--trace", trace_words_, "FILE", "write Chrome trace events, for Perfetto");
    add_word(sub, "--compare", compare_words_, "RUN2", "set another run beside it: settings, bytes, time");
    sub->add_flag("--text", report_.text, "print the report also where a file is written");
  }
  /// A flag that takes one value; given twice, need() says so.
  static void add_word(CLI::App* sub, const char* name, std::vector<std::string>& words, const char* type,
                       const char* help) {
    sub->add_option(name, words, help)
        ->type_name(type)
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->allow_extra_args(false);
  }

  int dispatch(const std::string& name) {
    if (name == "launch") return run_launch(launch_);
    if (name == "train") return run_train(train_options());
    return whole_output(run_reader(name));
  }

  int run_reader(const std::string& name) {
    if (name == "plan") return run_plan(plan_arguments());
    if (name == "probe") return run_probe(probe_);
    if (name == "verify") {
      verify_.run = need(run_words_, "The run folder");
      return run_verify(verify_);
    }
    if (name == "report") {
      report_.run = need(run_words_, "The run folder");
      if (!html_words_.empty()) report_.html = need(html_words_, "--html");
      if (!trace_words_.empty()) report_.trace = need(trace_words_, "--trace");
      if (!compare_words_.empty()) report_.compare = need(compare_words_, "--compare");
      return run_report(report_);
    }
    export_.run = need(run_words_, "The run folder");
    export_.to = need(to_words_, "--to");
    return run_export(export_);
  }

  CLI::App app_;
  SettingsCommand train_, plan_;
  PlanArguments asked_;  // without the options
  ProbeArguments probe_;
  VerifyArguments verify_;
  ExportArguments export_;
  LaunchArguments launch_;
  ReportArguments report_;
  std::vector<std::string> run_words_, to_words_, html_words_, trace_words_, compare_words_;
};

}  // namespace

/// InputError and BudgetError are the user's to mend: 2. All else is the environment: 1.
int transload_main(int argc, char** argv) {
  prepare_process();
  try {
    return CommandLine().run(argc, argv);
  } catch (const InputError& e) {
    fmt::print(stderr, "transload: {}\n", e.what());
    return kWrongInput;
  } catch (const BudgetError& e) {
    fmt::print(stderr, "transload: {}\n", e.what());
    return kWrongInput;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr,
               "transload: The system refused memory beside the budgets. Free memory, raise the limit of this process "
               "(ulimit -v) or container, or give smaller budgets.\n");
    return kFailed;
  } catch (const std::filesystem::filesystem_error& e) {
    fmt::print(stderr, "transload: {}: {}\n", e.path1().string(), e.code().message());
    return kFailed;
  } catch (const std::system_error& e) {  // of threads: std::thread, mutexes
    fmt::print(stderr,
               "transload: The system refused a thread or another resource: {}. Raise the limits of this "
               "process or container (ulimit -u, -v, -n).\n",
               e.code().message());
    return kFailed;
  } catch (const std::exception& e) {
    fmt::print(stderr, "transload: {}\n", e.what());
    return kFailed;
  }
}

}  // namespace transload::cli
