// The drive fails in the middle of a run: the error names what failed, the last commit is whole, and the run goes on
// from it to the same bits.
#include <catch2/catch.hpp>
#include <cerrno>
#include <random>

#include "base/error.h"
#include "base/faults.h"
#include "train/run_cases.h"

using namespace transload;
using namespace transload::testing;
using os::OpKind;

namespace {

TrainOptions options_in(const TempFolder& folder, const std::string& run) {
  TrainOptions o = options_of({.budget = 1, .chunk = 16 * KiB, .steps = 4}, folder.path(run));
  o.commit_every = {.steps = 1, .seconds = 0};
  set_budget(o, 1);
  return o;
}

std::uint64_t calls_of_a_run(const TempFolder& folder, const os::OpFilter& filter) {
  const auto count = std::make_shared<std::atomic<std::uint64_t>>(0);
  const TrainOptions o = options_in(folder, "counted");
  {
    const os::InterceptScope scope(os::count_into(filter, count));
    train(o);
  }
  std::filesystem::remove_all(o.run);
  return count->load();
}

struct Fault {
  const char* name;
  os::OpFilter filter;
  std::int64_t result;
};

/// Resumes until the end where the fault left a commit, begins anew where it did not.
std::string finish(TrainOptions o) {
  o.resume = Store::exists(o.run + "/store");
  if (o.resume) REQUIRE(verify_run(o.run, {}).empty());
  train(o);
  return fingerprint_run(o.run, {});
}

}  // namespace

TEST_CASE("A drive that fails at any of its calls costs the steps since the last commit, nothing else") {
  const Fault fault = GENERATE(Fault{"no space for a write", os::ops({OpKind::write}, "/store/"), -ENOSPC},
                               Fault{"a write fails", os::ops({OpKind::write}, "/store/slots"), -EIO},
                               Fault{"a read fails", os::ops({OpKind::read}, "/store/slots"), -EIO},
                               Fault{"a sync fails", os::ops({OpKind::sync}, "/store/"), -EIO},
                               Fault{"a rename fails", os::ops({OpKind::rename}, "/store/"), -EIO});
  TempFolder folder;
  const TrainOptions whole = options_in(folder, "whole");
  train(whole);
  const std::string expected = fingerprint_run(whole.run, {});
  const std::uint64_t calls = calls_of_a_run(folder, fault.filter);
  REQUIRE(calls > 0);
  std::mt19937_64 random(5);
  for (int attempt = 0; attempt < 4; ++attempt) {
    const std::uint64_t nth = attempt == 0 ? calls : 1 + random() % calls;  // the last call is a commit's
    INFO(fault.name << ", call " << nth << " of " << calls);
    const TrainOptions o = options_in(folder, fmt::format("run{}", attempt));
    bool failed = false;
    {
      const os::InterceptScope scope(os::fail_at(fault.filter, nth, fault.result));
      try {
        train(o);
      } catch (const IoError& error) {
        failed = true;
        CHECK_THAT(error.what(), Catch::Matchers::Contains("/store"));
        CHECK(error.details().error == -fault.result);
      }
    }
    // Which calls a run makes depends on timing: near the end the fault may not have been met.
    if (attempt > 0) CHECK((failed || nth > calls / 2));
    CHECK(finish(o) == expected);
  }
}

TEST_CASE("A store with a damaged block is refused by name, not trained on") {
  TempFolder folder;
  TrainOptions o = options_in(folder, "run");
  train(o, true);
  // Every slot file loses a byte in the middle of its slots; whichever block is read first is the one that is named.
  for (const auto& file : std::filesystem::directory_iterator(store_folder(o.run))) {
    if (!file.path().filename().string().starts_with("slots")) continue;
    std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (std::uint64_t at = 4096; at < file.file_size(); at += 4096) {
      bytes.seekg(static_cast<std::streamoff>(at));
      const char byte = static_cast<char>(bytes.get() ^ 1);
      bytes.seekp(static_cast<std::streamoff>(at));
      bytes.put(byte);
    }
  }
  REQUIRE_FALSE(verify_run(o.run, {}).empty());
  o.resume = true;
  CHECK_THROWS_AS(train(o), DamageError);
}
