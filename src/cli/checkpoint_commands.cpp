// verify and export: what is done with a run's last commit without training.
#include <fmt/format.h>

#include <cstdio>

#include "cli/commands.h"
#include "cli/console.h"
#include "train/checkpoint.h"

namespace transload::cli {

int run_verify(const VerifyArguments& arguments) {
  Console console;
  const Progress progress = [&](std::uint64_t done, std::uint64_t total) {
    console.progress("verifying", done, total);
  };
  const std::vector<std::string> damage = verify_run(arguments.run, progress);
  console.finish_line();
  for (const std::string& line : damage) fmt::print("{}\n", line);
  if (!damage.empty()) {
    fmt::print(stderr,
               "transload: {} of the last commit's blocks are damaged. An earlier export, or a copy of the "
               "store, is what remains.\n",
               damage.size());
    return kFailed;
  }
  fmt::print("{}: every block of the last commit is whole.\n", arguments.run);
  if (arguments.fingerprint) fmt::print("fingerprint {}\n", fingerprint_run(arguments.run, progress));
  return kDone;
}

int run_export(const ExportArguments& arguments) {
  Console console;
  const Progress progress = [&](std::uint64_t done, std::uint64_t total) {
    console.progress("exporting", done, total);
  };
  export_run(arguments.run, arguments.to, {.master = arguments.master, .optimizer = arguments.optimizer}, progress);
  console.finish_line();
  fmt::print("Exported {} to {}.\n", arguments.run, arguments.to);
  return kDone;
}

}  // namespace transload::cli
