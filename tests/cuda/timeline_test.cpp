// The timeline of a CUDA run over the stand-in: times from the device's events, in order and complete; the probe's
// measurements; host memory near the device.
#include "offload/cuda/cuda_device.h"

#include <cstdlib>
#include <thread>

#include "base/error.h"
#include "offload/cuda/cuda_stream.h"
#include "runtime.h"
#include "train/accelerator.h"
#include "train/cuda/cuda_accelerator.h"
#include "train/record_checks.h"

using namespace transload;
using namespace transload::cuda;
using namespace transload::testing;
using Catch::Matchers::Contains;

namespace {

constexpr std::int64_t kSlackNs = 100'000'000;  // work at the edge of a step, on a machine that does other things

stand_in::Settings device(std::uint64_t seed) {
  stand_in::Settings settings;
  settings.device_bytes = 2 * GiB;
  settings.seed = seed;
  settings.most_delay_us = 20;
  return settings;
}

/// hwloc sees a machine of two nodes with a GPU at each while this lives.
class TwoNodes {
 public:
  TwoNodes() { ::setenv("HWLOC_XMLFILE", TRANSLOAD_SOURCE_DIR "/tests/offload/two_nodes.xml", 1); }
  ~TwoNodes() {
    ::unsetenv("HWLOC_XMLFILE");
    ::unsetenv("HWLOC_THISSYSTEM");
  }
};

std::uint64_t calls_of(const std::string& name) {
  for (const auto& [called, count] : stand_in::calls())
    if (called == name) return count;
  return 0;
}

}  // namespace

TEST_CASE("Steps that are recorded have times from the device's events, others none of them") {
  stand_in::Settings settings = device(1);
  settings.most_delay_us = 0;  // thousands of pieces of work
  stand_in::reset(settings);
  cuda::announce();
  TempFolder folder;
  RunCase c;
  c.device = DeviceKind::cuda;
  c.budget = 1.5;
  c.steps = 4;
  TrainOptions o = options_of(c, folder.path("run"));
  set_budget(o, c.budget);
  train(o);
  const std::vector<Json> record = record_of(o.run);
  check_documented(record);
  std::map<std::string, std::uint64_t> peak;
  for (const auto& [number, step] : events_by_step(record)) {
    CAPTURE(number);
    const bool recorded = number <= 3;
    CHECK(step.summary["clock"] == (recorded ? "device" : "host"));
    CHECK(step.spans.empty() == !recorded);
    if (!recorded) continue;
    CHECK(step.summary["events_lost"] == 0);
    CHECK(step.summary["clock_error_ns"].get<std::uint64_t>() > 0);
    check_spans(step, kSlackNs);
    check_processors(step);
    check_waits(step, kSlackNs);
    check_memory(step, record.front()["budgets"], peak);
    CHECK(operations(step, "compute").count("layer backward 1") == 1);
  }
  CHECK(peak["device"] > 0);
  std::ifstream file(o.run + "/summary.json");
  const Json gpu = Json::parse(file)["gpu"];
  CHECK(gpu == record.front()["gpu"]);
  CHECK(gpu["capability"] == "9.0");
  CHECK(gpu["driver"] == "13.2");
  CHECK(gpu["runtime"] == "13.0");
  CHECK(gpu["ordinal"] == 0);
  CHECK(gpu["total_bytes"] == 2 * GiB);
}

TEST_CASE("An event's time lies between the host's looks at the clock before and after it") {
  stand_in::reset(device(2));
  CudaDevice gpu(0);
  const auto stream = gpu.make_stream(8);
  auto& cuda = static_cast<CudaStream&>(*stream);
  const auto timed = [&](TaskTimes* times) {
    stream->launch_timed(
        [&] {
          stand_in::enqueue(cuda.get(), "sleep", [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
        },
        times, [] {});
  };
  for (const bool by_events : {true, false}) {
    const auto slack = static_cast<std::int64_t>(gpu.time_by_events(by_events)) + 2000;  // floats of milliseconds
    TaskTimes first, second;
    const std::uint64_t before = host_clock_ns();
    timed(&first);
    timed(&second);
    stream->synchronize();
    const std::uint64_t after = host_clock_ns();
    CAPTURE(by_events, before, first.begin_ns, first.end_ns, second.begin_ns, second.end_ns, after, slack);
    const auto in_order = [&](std::uint64_t a, std::uint64_t b) { return static_cast<std::int64_t>(b - a) >= -slack; };
    CHECK(in_order(before, first.begin_ns));
    CHECK(in_order(first.end_ns, second.end_ns));
    CHECK(in_order(second.end_ns, after));
    CHECK(first.end_ns - first.begin_ns >= 20'000'000 - 2000);
    // By events the second begins when the first has ended, by the host's clock when it was issued.
    CHECK((second.end_ns - second.begin_ns < 38'000'000) == by_events);
  }
  CHECK(calls_of("cudaEventElapsedTime") == 4);
}

TEST_CASE("The probe measures the links with locked memory, and says why it could not be locked") {
  stand_in::Settings settings = device(3);
  for (const bool lockable : {true, false}) {
    settings.pinned_bytes = lockable ? UINT64_MAX : 4096;
    stand_in::reset(settings);
    cuda::announce();
    const AcceleratorLinks links = measure_accelerator(0);
    CHECK((links.host_to_device > 0 && links.device_to_host > 0 && links.both > 0));
    CHECK(links.bytes == 256 * MiB);
    CHECK(links.host.unpinned_reason.empty() == lockable);
    const stand_in::Live live = stand_in::live();
    CHECK((live.streams == 0 && live.events == 0 && live.device_bytes == 0 && live.pinned_bytes == 0));
  }
  settings.device_bytes = 0;
  stand_in::reset(settings);
  CHECK_THROWS_AS(measure_accelerator(0), Error);
}

TEST_CASE("A run says which node its host memory is on, or why it is not near the GPU") {
  if (numa::nodes().source != "hwloc") {
    WARN("skipped: this build has no hwloc");
    return;
  }
  const bool several_here = numa::nodes().nodes.size() > 1;
  const TwoNodes other;
  stand_in::reset(device(4));
  {
    CudaDevice gpu(0);
    const auto memory = gpu.host_memory(1 << 20, true);
    CHECK(gpu.host_node().node == 0);
    CHECK_THAT(gpu.unbound_reason(), Contains("another machine"));
    CHECK(calls_of("cudaHostAlloc") == 1);
    CHECK(gpu.unpinned_reason().empty());
  }
  ::setenv("HWLOC_THISSYSTEM", "1", 1);
  stand_in::reset(device(4));
  {
    CudaDevice gpu(0);
    const auto memory = gpu.host_memory(1 << 20, true);
    CAPTURE(gpu.unbound_reason());
    const bool bound = gpu.unbound_reason().empty();
    if (!bound) CHECK_THAT(gpu.unbound_reason(), Contains("was refused"));
    CHECK(calls_of("cudaHostRegister") == (bound ? 1 : 0));
    CHECK(gpu.unpinned_reason().empty());
  }
  stand_in::Settings two = device(4);
  two.devices = 2;
  stand_in::reset(two);
  CudaDevice far(1);
  const auto memory = far.host_memory(1 << 20, true);
  CHECK(far.host_node().node == 1);
  if (!several_here) CHECK_THAT(far.unbound_reason(), Contains("NUMA node 1 was refused"));
}
