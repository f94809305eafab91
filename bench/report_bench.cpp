// bench_report: how long reading a record of ten million events takes, and how much memory. The limits: 20 s, 500 MiB.
//   bench_report [EVENTS]    writes the record to a temporary folder first (about 1.3 GB for ten million) and removes
//   it
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/size.h"
#include "report/made_record.h"
#include "report/report.h"

namespace transload::report {
namespace {

/// Steps of 50,000 events each, as a large model's are.
void write_record(const std::string& path, std::uint64_t events) {
  constexpr int kEventsAStep = 50'000;
  std::ofstream file(path);
  file << test::kHeader;
  int number = 1;
  for (std::uint64_t written = 0; written < events; ++number) {
    for (int i = 0; i < kEventsAStep / 5; ++i) {
      const long at = 1000L * i;
      file << test::access(number, i, i % 3, "device", at, 100, "hit") << test::span(number, "nvme_read", at, at + 900)
           << test::work(number, "compute", "layer forward", at, at + 500)
           << test::wait(number, "issue", "use", at, at + 300) << test::memory(number, "host", at, 64, 32);
    }
    written += kEventsAStep;
    file << test::step(number, 10'000'000, 100);
  }
  file << test::kEnd;
}

std::uint64_t peak_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * KiB;
}

}  // namespace
}  // namespace transload::report

int main(int argc, char** argv) {
  using namespace transload;
  using Clock = std::chrono::steady_clock;
  const std::uint64_t events = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 10'000'000;
  const report::test::Folder folder;
  const std::string path = folder.path() + "/record.jsonl";
  report::write_record(path, events);
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto start = Clock::now();
  const report::Report read = report::read_report(path);
  const double read_s = seconds_since(start);
  const auto drawn = Clock::now();
  const std::string page = report::html_page(read, nullptr);
  const double page_s = seconds_since(drawn);
  fmt::print("{} events, {}: read in {:.1f} s ({:.2f} of the limit of 20 s), {:.0f} MB/s; page of {} in {:.2f} s\n",
             read.first().facts.events, format_size(read.first().facts.bytes), read_s, read_s / 20,
             static_cast<double>(read.first().facts.bytes) / read_s / 1e6, format_size(page.size()), page_s);
  fmt::print("peak resident memory {} ({:.2f} of the limit of 500 MiB)\n", format_size(report::peak_bytes()),
             static_cast<double>(report::peak_bytes()) / static_cast<double>(500 * MiB));
}
