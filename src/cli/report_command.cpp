// report: what a run's record says, as text, as a page and as a trace. Reads the record alone, also of a run that is
// still going on.
#include <fcntl.h>
#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "base/os.h"
#include "cli/commands.h"
#include "report/report.h"

namespace transload::cli {
namespace {

void write_page(const std::string& path, const std::string& page) {
  const os::File file = os::File::open_or_throw(path, O_WRONLY | O_CREAT | O_TRUNC);
  file.write_or_throw(page.data(), page.size(), 0);
}

}  // namespace

int run_report(const ReportArguments& arguments) {
  const report::Report one = report::read_report(arguments.run);
  std::optional<report::Report> beside;
  if (!arguments.compare.empty()) beside = report::read_report(arguments.compare);
  const bool files = !arguments.html.empty() || !arguments.trace.empty();
  if (!arguments.html.empty()) write_page(arguments.html, report::html_page(one, beside ? &*beside : nullptr));
  if (!arguments.trace.empty()) report::write_trace(arguments.run, arguments.trace);
  if (arguments.text || !files)
    fmt::print("{}", beside ? report::text_comparison(one, *beside) : report::text_page(one));
  if (!arguments.text && files) fmt::print("{}\n", one.advice.sentence);
  if (!arguments.html.empty()) fmt::print("The page is {}.\n", arguments.html);
  if (!arguments.trace.empty()) fmt::print("The trace is {}; ui.perfetto.dev opens it.\n", arguments.trace);
  return kDone;
}

}  // namespace transload::cli
