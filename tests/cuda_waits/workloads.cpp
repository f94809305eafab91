#include "cuda_waits/workloads.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/faults.h"
#include "chunk/layout.h"
#include "cuda/small_run.h"
#include "engine/engine_model.h"
#include "offload/cuda/cuda_device.h"
#include "train/cuda/cuda_kernels.h"
#include "train/weight_panels.h"

namespace cuda_waits {
namespace {

using namespace transload;
using namespace transload::testing;
using cuda::CudaStream;
using std::chrono::milliseconds;

constexpr milliseconds kSlow{100};  // longer than a busy machine takes to wake whoever does not wait

cudaStream_t handle(Stream& stream) { return static_cast<CudaStream&>(stream).get(); }

bool fails(Stream& stream) {
  try {
    stream.synchronize();
  } catch (const Error&) {
    return true;
  }
  return false;
}

/// Host work that is given up, not run; says whether the device had ended then.
struct GivenUp {
  GivenUp(std::atomic<bool>& ended_in, std::atomic<bool>& early_in) : ended(&ended_in), early(&early_in) {}
  GivenUp(GivenUp&& o) noexcept : ended(std::exchange(o.ended, nullptr)), early(o.early) {}
  GivenUp(const GivenUp&) = delete;
  ~GivenUp() {
    if (ended != nullptr && !*ended) *early = true;
  }
  void operator()() const {}
  std::atomic<bool>*ended, *early;
};

/// After an error of a task host work is given up, but what it stands for only once the device has let go of it.
bool host_work_is_given_up_late() {
  stand_in::reset({});
  cuda::CudaDevice device(0);
  std::atomic<bool> ended{false}, early{false};
  const auto stream = device.make_stream(16);
  stream->launch([&] {
    stand_in::enqueue(handle(*stream), "slow", [&] {
      std::this_thread::sleep_for(kSlow);
      ended = true;
    });
  });
  stream->launch([] { throw Error("a task fails"); });
  stream->after(GivenUp(ended, early));
  return fails(*stream) && !early;
}

/// synchronize() returns when all host work has ended, after an error of a task, too.
bool synchronizing_waits_for_host_work() {
  stand_in::reset({});
  cuda::CudaDevice device(0);
  std::atomic<bool> ended{false};
  const auto stream = device.make_stream(16);
  stream->after([&] {
    std::this_thread::sleep_for(kSlow);
    ended = true;
  });
  stream->launch([] { throw Error("a task fails"); });
  return fails(*stream) && ended;
}

/// An error that shows when the device is waited for comes out of synchronize().
bool errors_of_completion_come_out() {
  stand_in::reset({});
  cuda::CudaDevice device(0);
  const auto stream = device.make_stream(16);
  stand_in::fail_call("cudaEventSynchronize", 1, cudaErrorLaunchFailure);
  stream->after([] {});
  return fails(*stream) || stand_in::fault_waits();
}

/// A stream whose threads cannot use its device is not made.
bool errors_of_construction_come_out() {
  stand_in::reset({});
  cuda::CudaDevice device(0);
  stand_in::fail_call("cudaSetDevice", 1, cudaErrorLaunchFailure);
  try {
    device.make_stream(4);
  } catch (const Error&) {
    return true;
  }
  return false;
}

/// Two parameters get two gradients each, in turn, on a device whose memory holds one's sums and little more: they come
/// and go in between. The verdict has the squares of all.
bool verdict_has_all_gradients(Dtype dtype, std::uint64_t frames, std::uint64_t seed) {
  stand_in::reset(seeded_device(seed, 2000));
  constexpr std::uint64_t kElements = 2048;
  const auto context = std::make_shared<cuda::CudaContext>(0);
  const ParamSpec first{.name = "first", .shape = {2, kElements / 2}}, second{.name = "second", .shape = first.shape};
  const Layout layout({first, second}, training_planes(dtype, dtype, dtype == Dtype::bf16), kElements * size_of(dtype));
  Engine engine(
      layout.blocks(),
      {.device_bytes = frames * kFrame, .host_bytes = 1 * MiB, .frame_bytes = kFrame, .device = &context->device},
      nullptr);
  const auto stream = context->device.make_stream(64);
  context->compute = static_cast<CudaStream*>(stream.get());
  QueueStream host(16);
  const cuda::CudaBuffer values(*context, 2 * kElements * sizeof(float), true);
  std::fill_n(values.host<float>(), kElements, 1.0f);
  std::fill_n(values.host<float>() + kElements, kElements, 2.0f);
  Optimizer optimizer(layout, engine, *stream, host,
                      {.compute_tier = Tier::device, .gradients = cuda::make_cuda_gradient_kernels(context)}, {2, 2});
  stream->launch([&] { values.to_device(context->stream()); });
  for (const std::uint32_t p : {0u, 1u, 0u, 1u})
    optimizer.contribute(ParamId(p), 0, kElements, values.device<float>() + p * kElements);
  const Verdict verdict = optimizer.finish_backward();
  return verdict.finite && std::abs(verdict.norm * verdict.norm - (4 + 16) * kElements) < 1e-6;
}

/// A vector is loaded in whose chunk comes up from the host for it alone, over a link that is as slow as computation.
bool vector_is_there_when_loaded(std::uint64_t seed) {
  stand_in::reset(seeded_device(seed, 20000));
  constexpr std::uint64_t kElements = 1024;
  const auto context = std::make_shared<cuda::CudaContext>(0);
  const Layout layout({{.name = "vector", .shape = {kElements}}}, training_planes(Dtype::f32, Dtype::f32, false),
                      kElements * sizeof(float));
  Engine engine(layout.blocks(),
                {.device_bytes = 4 * kFrame, .host_bytes = 1 * MiB, .frame_bytes = kFrame, .device = &context->device},
                nullptr);
  const auto stream = context->device.make_stream(64);
  context->compute = static_cast<CudaStream*>(stream.get());
  QueueStream host(16);
  Optimizer optimizer(layout, engine, *stream, host,
                      {.compute_tier = Tier::device, .gradients = cuda::make_cuda_gradient_kernels(context)}, {1});
  Pin weight = engine.pin(layout.block(ChunkId(0), layout.plane("weight")), Tier::host, AccessKind::write);
  const std::vector<float> want(kElements, 3.0f);
  weight.view.copy_in(want.data(), 0, kElements * sizeof(float));
  engine.unpin(std::move(weight), host);
  const cuda::CudaBuffer got(*context, kElements * sizeof(float), true);
  const auto kernels = cuda::make_cuda_kernels(Dtype::f32, context);
  StepContext step{engine, *stream, Tier::device, optimizer, layout, *kernels, false};
  load_vector<float>(step, ParamId(0), got.device<float>());
  stream->launch([&] { got.to_host(context->stream()); });
  stream->synchronize();
  return std::equal(want.begin(), want.end(), got.host<float>());
}

/// The engine beside a plain model; a difference throws.
bool engine_shows_what_was_written_last(std::uint64_t seed) {
  stand_in::reset(seeded_device(seed, 200));
  cuda::CudaDevice device(0);
  const auto compute = device.make_stream(64);
  const Processor processor{&device, compute.get(), [&](std::function<void()> work) {
                              compute->launch([&compute, work] { stand_in::enqueue(handle(*compute), "test", work); });
                            }};
  run_steps(seed, processor, seed % 3 == 0, seed % 4 != 0, 2);
  return true;
}

/// Reads of the store take long now and then, or all of them do, so that what waits for them has to.
os::Interceptor slow_reads(std::uint64_t seed, std::uint64_t least_us) {
  const auto random = std::make_shared<std::mt19937_64>(seed);
  const auto mutex = std::make_shared<std::mutex>();
  return [=](const os::IoOp& op) -> std::optional<std::int64_t> {
    if (op.kind != os::OpKind::read) return std::nullopt;
    std::uint64_t us;
    {
      const std::lock_guard lock(*mutex);
      us = least_us + (*random)() % 1000;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(us));
    return std::nullopt;
  };
}

bool training_gives_the_same_bits(const std::string& model, Recompute recompute, std::uint64_t seed,
                                  std::uint64_t least_us, const std::string& folder, bool first) {
  std::filesystem::remove_all(folder + "/run");
  const TrainOptions o = small_options(model, recompute, folder + "/run");
  begin(seeded_device(seed, 100));
  {
    const os::InterceptScope slow(slow_reads(seed, least_us));
    train(o);
  }
  const std::string got = fingerprint_run(o.run, {}), kept = folder + "/" + model;
  if (first && seed == 1 && least_us == 0) std::ofstream(kept) << got;
  return got == read_whole(kept) && stand_in::failure().empty();
}

}  // namespace

std::vector<Workload> workloads(const std::string& folder, bool first) {
  std::vector<Workload> all = {{"host work is given up late", host_work_is_given_up_late},
                               {"synchronizing waits for host work", synchronizing_waits_for_host_work},
                               {"errors of completion come out", errors_of_completion_come_out},
                               {"errors of construction come out", errors_of_construction_come_out}};
  for (std::uint64_t seed = 1; seed <= 10; ++seed)
    for (const bool sums : {false, true})
      all.push_back({fmt::format("the verdict has all gradients, {}, seed {}", sums ? "bf16" : "fp32", seed),
                     [=] { return verdict_has_all_gradients(sums ? Dtype::bf16 : Dtype::f32, sums ? 4 : 3, seed); }});
  for (std::uint64_t seed = 1; seed <= 12; ++seed)
    all.push_back({fmt::format("a vector, seed {}", seed), [=] { return vector_is_there_when_loaded(seed); }});
  for (std::uint64_t seed = 1; seed <= 4; ++seed)
    all.push_back({fmt::format("engine, seed {}", seed), [=] { return engine_shows_what_was_written_last(seed); }});
  for (const std::uint64_t least_us : {0, 4000})
    for (std::uint64_t seed = 1; seed <= 3; ++seed)
      for (const bool llama : {true, false}) {
        const char* const model = llama ? "llama" : "gpt2";
        const Recompute recompute = llama ? Recompute::none : Recompute::layer;
        all.push_back({fmt::format("training {}, reads of {} us and more, seed {}", model, least_us, seed),
                       [=] { return training_gives_the_same_bits(model, recompute, seed, least_us, folder, first); }});
      }
  return all;
}

}  // namespace cuda_waits
