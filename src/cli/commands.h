// The commands. Each takes its arguments as parsed and returns the exit code: 0 done, 1 the environment failed or data
// is damaged, 2 wrong input, 130 interrupted. They print to stdout; errors are thrown and printed by main().
#pragma once

#include <string>
#include <vector>

#include "train/trainer.h"

namespace transload::cli {

inline constexpr int kDone = 0, kFailed = 1, kWrongInput = 2, kInterrupted = 130;

/// The whole program: parses, dispatches, prints errors.
int transload_main(int argc, char** argv);

int run_train(const TrainOptions& options);

struct PlanArguments {
  TrainOptions options;
  std::string box;    ///< file; empty: this machine
  std::string ranks;  ///< "1..4096"; empty: no table
  std::string html;   ///< file for the table's plot
  bool probe = false, json = false, search = false;
};
int run_plan(const PlanArguments& arguments);

struct LaunchArguments {
  int ranks = 0;
  std::vector<std::string> words;  ///< the ranks' command line
};
int run_launch(const LaunchArguments& arguments);

struct ProbeArguments {
  std::vector<std::string> nvme;
  bool json = false;
};
int run_probe(const ProbeArguments& arguments);

struct VerifyArguments {
  std::string run;
  bool fingerprint = false;
};
int run_verify(const VerifyArguments& arguments);

struct ExportArguments {
  std::string run, to;
  bool master = false, optimizer = false;
};
int run_export(const ExportArguments& arguments);

struct ReportArguments {
  std::string run, html, trace, compare;  ///< empty: not asked for
  bool text = false;
};
int run_report(const ReportArguments& arguments);

}  // namespace transload::cli
