// OffloadedAdamW over tensors on a device, on the stand-in: the bits of the same tensors on the host wherever state
// lies and whatever the delays, order with the caller's stream, gradients that are written over, faults, refusals.
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <random>

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/cpu/half.h"
#include "runtime.h"
#include "train/cuda/cuda_tensors.h"
#include "train/temp_folder.h"
#include "transload/offloaded_adamw.h"

using namespace transload;

namespace {

using Bytes = std::vector<std::byte>;

std::uint64_t bytes_of(ElementType t) { return t == ElementType::fp32 ? 4 : 2; }

void put(ElementType type, std::byte* to, std::size_t i, float value) {
  if (type == ElementType::fp32) reinterpret_cast<float*>(to)[i] = value;
  if (type == ElementType::bf16) reinterpret_cast<bf16*>(to)[i] = split_master(value).weight;
  if (type == ElementType::fp16) reinterpret_cast<kernels::half*>(to)[i] = kernels::to_half(value);
}

Bytes numbers(ElementType type, std::uint64_t elements, unsigned seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  Bytes bytes(elements * bytes_of(type));
  for (std::size_t e = 0; e < elements; ++e) put(type, bytes.data(), e, normal(random));
  return bytes;
}

/// Odd sizes, all types, one of no elements; where `mixed`, every third tensor is the host's.
std::vector<OptimizerTensor> tensors_of(bool mixed) {
  std::vector<OptimizerTensor> specs;
  for (const ElementType type : {ElementType::fp32, ElementType::bf16, ElementType::fp16})
    for (const std::uint64_t elements : {1u, 0u, 127u, 1024u, 1025u, 9001u}) {
      const std::size_t i = specs.size();
      specs.push_back({.name = "t" + std::to_string(i), .elements = elements, .type = type, .key = i});
      if (!mixed || i % 3 != 0) specs.back().device = 0;
    }
  return specs;
}

/// A trainer: memory of its tensors, a stream in which it writes gradients and reads weights. All that it does to the
/// device it does in that stream, asynchronously.
class Trainer {
 public:
  explicit Trainer(std::vector<OptimizerTensor> specs_in) : specs(std::move(specs_in)) {
    for (cudaStream_t* stream : {&stream_, &other_})
      REQUIRE(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaEventCreateWithFlags(&handover_, cudaEventDisableTiming) == cudaSuccess);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      weights_.push_back(take(i));
      gradients_.push_back(take(i));
      write(weights_[i], numbers(specs[i].type, specs[i].elements, static_cast<unsigned>(i), 0.5f), i);
    }
  }
  ~Trainer() {
    for (std::size_t i = 0; i < specs.size(); ++i)
      for (std::byte* memory : {weights_[i], gradients_[i]}) give(memory, i);
    for (cudaStream_t stream : {stream_, other_}) cudaStreamDestroy(stream);
    cudaEventDestroy(handover_);
  }
  Trainer(const Trainer&) = delete;

  /// Some tensors have no gradient.
  std::vector<TensorStep> gradients_of(unsigned number) {
    std::vector<TensorStep> steps;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if ((i + number) % 5 == 4) continue;
      write(gradients_[i], numbers(specs[i].type, specs[i].elements, 100 * number + static_cast<unsigned>(i), 1), i);
      steps.push_back({.tensor = i,
                       .weight = weights_[i],
                       .gradient = gradients_[i],
                       .gradient_type = specs[i].type,
                       .learning_rate = 1e-3 * (1 + static_cast<double>(i % 3)),
                       .weight_decay = i % 2 == 0 ? 0.1 : 0});
    }
    return steps;
  }
  void step(OffloadedAdamW& optimizer, unsigned number) { optimizer.step(gradients_of(number), 2, stream_); }
  /// As whoever gets the memory next: by a stream that knows nothing of the caller's, or in the caller's.
  void poison_gradients(bool at_once) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (!on_device(i)) continue;
      stand_in::enqueue(at_once ? other_ : stream_, "poison",
                        [at = gradients_[i], n = bytes(i)] { std::memset(at, 0xFF, n); });
    }
    if (at_once) REQUIRE(cudaStreamSynchronize(other_) == cudaSuccess);
  }
  void change_weight(std::size_t i, std::size_t element, float value) {
    Bytes one(bytes_of(specs[i].type));
    put(specs[i].type, one.data(), 0, value);
    write(weights_[i] + element * one.size(), one, i);
  }
  Bytes weight(std::size_t i) {
    Bytes content(bytes(i));
    if (!on_device(i)) {
      std::copy_n(weights_[i], content.size(), content.begin());
      return content;
    }
    stand_in::enqueue(stream_, "read", [&, at = weights_[i]] { std::copy_n(at, content.size(), content.begin()); });
    cudaStreamSynchronize(stream_);
    return content;
  }
  std::vector<Bytes> all_weights() {
    std::vector<Bytes> all;
    for (std::size_t i = 0; i < specs.size(); ++i) all.push_back(weight(i));
    return all;
  }
  cudaStream_t stream() const { return stream_; }
  /// Goes on in another stream, which waits for this one.
  void switch_stream() {
    REQUIRE(cudaEventRecord(handover_, stream_) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(other_, handover_, 0) == cudaSuccess);
    std::swap(stream_, other_);
  }

  const std::vector<OptimizerTensor> specs;

 private:
  bool on_device(std::size_t i) const { return specs[i].device != kOnHost; }
  std::uint64_t bytes(std::size_t i) const { return specs[i].elements * bytes_of(specs[i].type); }
  std::byte* take(std::size_t i) {
    if (!on_device(i)) return new std::byte[bytes(i) + 1];
    void* memory = nullptr;
    REQUIRE(cudaMalloc(&memory, bytes(i)) == cudaSuccess);
    return static_cast<std::byte*>(memory);
  }
  void give(std::byte* memory, std::size_t i) {
    if (on_device(i))
      cudaFree(memory);
    else
      delete[] memory;
  }
  void write(std::byte* to, const Bytes& content, std::size_t i) {
    if (on_device(i))
      stand_in::enqueue(stream_, "write", [to, content] { std::copy(content.begin(), content.end(), to); });
    else
      std::copy(content.begin(), content.end(), to);
  }
  cudaStream_t stream_ = nullptr, other_ = nullptr;
  cudaEvent_t handover_ = nullptr;
  std::vector<std::byte*> weights_, gradients_;
};

std::vector<OptimizerTensor> on_host(std::vector<OptimizerTensor> specs) {
  for (OptimizerTensor& spec : specs) spec.device = kOnHost;
  return specs;
}

constexpr std::uint64_t kAll = 1 << 20;

/// Weights and planes of every tensor, as bytes.
std::vector<Bytes> everything(OffloadedAdamW& optimizer, Trainer& trainer) {
  std::vector<Bytes> all = trainer.all_weights();
  for (std::size_t i = 0; i < trainer.specs.size(); ++i)
    for (const StatePlane plane : {StatePlane::moment1, StatePlane::moment2, StatePlane::master}) {
      const OptimizerTensor& spec = trainer.specs[i];
      if (plane == StatePlane::master && spec.type == ElementType::fp32) continue;
      Bytes values(spec.elements * 4);
      const Bytes weight = all[i];
      optimizer.read(i, plane, 0, spec.elements, weight.data(), reinterpret_cast<float*>(values.data()));
      all.push_back(std::move(values));
    }
  return all;
}

/// What the same tensors on the host come to, after as many steps with the same change in between.
std::vector<Bytes> expected(bool mixed, unsigned steps, ElementType moments = ElementType::fp32) {
  Trainer trainer(on_host(tensors_of(mixed)));
  OffloadedAdamWOptions options;
  options.moments = moments;
  OffloadedAdamW optimizer(trainer.specs, options);
  for (unsigned number = 0; number < steps; ++number) {
    if (number == 3) trainer.change_weight(11, 2050, 3), trainer.change_weight(17, 2050, 3);
    trainer.step(optimizer, number);
  }
  return everything(optimizer, trainer);
}

struct Budget {
  const char* name;
  double of_least;  ///< of the least with a disk; 0: all in memory of the host
  std::uint64_t device;
  std::uint64_t chunk;
};

OffloadedAdamWOptions options_of(const Budget& budget, const TempFolder& folder,
                                 const std::vector<OptimizerTensor>& specs) {
  OffloadedAdamWOptions options;
  options.device_memory = budget.device;
  options.chunk_elements = budget.chunk;
  if (budget.of_least == 0) return options;
  std::filesystem::create_directories(folder.path("nvme"));
  options.nvme = folder.path("nvme");
  options.io_uring = false;
  options.host_memory =
      static_cast<std::uint64_t>(static_cast<double>(OffloadedAdamW::least_memory(specs, options)) * budget.of_least);
  return options;
}

std::vector<Bytes> trained(Trainer& trainer, OffloadedAdamW& optimizer, unsigned steps, bool poison_at_once) {
  for (unsigned number = 0; number < steps; ++number) {
    if (number == 3) trainer.change_weight(11, 2050, 3), trainer.change_weight(17, 2050, 3);
    trainer.step(optimizer, number);
    trainer.poison_gradients(poison_at_once);
  }
  return everything(optimizer, trainer);
}

void start(std::uint64_t seed, int devices = 1) {
  stand_in::Settings settings;
  settings.seed = seed;
  settings.devices = devices;
  stand_in::reset(settings);
  cuda::announce_tensors();
}

void require_nothing_left() {
  const stand_in::Live live = stand_in::live();
  REQUIRE(live.streams + live.events + live.device_bytes + live.pinned_bytes == 0);
}

}  // namespace

TEST_CASE("Tensors on a device get the bits of tensors on the host, wherever state lies") {
  const bool mixed = GENERATE(false, true);
  const Budget budget =
      GENERATE(Budget{"host", 0, 0, 2048}, Budget{"host, one chunk", 0, 0, 0}, Budget{"disk, least", 1, 0, 1024},
               Budget{"disk", 1.5, 0, 4096}, Budget{"device in part", 0, 60'000, 1024},
               Budget{"device in part, disk", 1.5, 60'000, 1024}, Budget{"device", 0, kAll, 4096});
  INFO(budget.name << (mixed ? ", mixed" : ""));
  start(1);
  TempFolder folder;
  {
    const std::vector<Bytes> want = expected(mixed, 6);
    Trainer trainer(tensors_of(mixed));
    OffloadedAdamW optimizer(trainer.specs, options_of(budget, folder, trainer.specs));
    REQUIRE((trained(trainer, optimizer, 6, budget.device == 0) == want));
    const OptimizerReport report = optimizer.report();
    REQUIRE(report.host_peak <= report.host_budget);
    REQUIRE(stand_in::live().pinned_bytes > 0);
    REQUIRE(stand_in::live().pinned_bytes <= report.host_peak);
    REQUIRE((report.device_state_bytes > 0) == (budget.device > 0));
    REQUIRE(report.device_state_bytes <= budget.device);
    REQUIRE((report.nvme_read > 0) == (budget.of_least > 0));
    REQUIRE(report.device_read >= 2 * report.device_written);
    REQUIRE(report.staging_reason.empty());
  }
  require_nothing_left();
}

TEST_CASE("Whatever the delays of the device, the bits are the same") {
  start(0);
  const std::vector<Bytes> want = expected(true, 4);
  TempFolder folder;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    start(seed);
    Trainer trainer(tensors_of(true));
    const Budget budget = seed % 2 == 0 ? Budget{"device in part", 0, 60'000, 1024} : Budget{"disk", 1.5, 0, 1024};
    OffloadedAdamW optimizer(trainer.specs, options_of(budget, folder, trainer.specs));
    REQUIRE((trained(trainer, optimizer, 4, budget.device == 0) == want));
  }
  require_nothing_left();
}

TEST_CASE("What the caller's stream gets right after a step finds the new weights") {
  constexpr std::size_t kLast = 17;  // the tensor whose weights go up last
  start(0);
  std::vector<Bytes> want;
  {
    Trainer trainer(on_host(tensors_of(false)));
    OffloadedAdamW optimizer(trainer.specs, {});
    for (unsigned number = 0; number < 3; ++number) {
      trainer.step(optimizer, number);
      want.push_back(trainer.weight(kLast));
    }
  }
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    start(seed);
    Trainer trainer(tensors_of(false));
    OffloadedAdamWOptions options;
    options.chunk_elements = 4096;
    OffloadedAdamW optimizer(trainer.specs, options);
    for (unsigned number = 0; number < 3; ++number) {
      trainer.step(optimizer, number);
      REQUIRE((trainer.weight(kLast) == want[number]));
    }
  }
}

TEST_CASE("The caller may come with another stream each time") {
  start(0);
  const std::vector<Bytes> want = expected(false, 4);
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    CAPTURE(seed);
    start(seed);
    Trainer trainer(tensors_of(false));
    OffloadedAdamWOptions options;
    options.chunk_elements = 1024;
    options.device_memory = 60'000;
    OffloadedAdamW optimizer(trainer.specs, options);
    for (unsigned number = 0; number < 4; ++number) {
      if (number == 3) trainer.change_weight(11, 2050, 3), trainer.change_weight(17, 2050, 3);
      trainer.step(optimizer, number);
      trainer.switch_stream();
    }
    REQUIRE((everything(optimizer, trainer) == want));
  }
}

TEST_CASE("bf16 moments stay off the device and have the same bits") {
  start(5);
  const std::vector<Bytes> want = expected(true, 4, ElementType::bf16);
  Trainer trainer(tensors_of(true));
  OffloadedAdamWOptions options;
  options.moments = ElementType::bf16;
  options.device_memory = kAll;
  OffloadedAdamW optimizer(trainer.specs, options);
  REQUIRE((trained(trainer, optimizer, 4, true) == want));
  REQUIRE(optimizer.report().device_state_bytes == 0);
}

TEST_CASE("The arena may be the caller's, and no more of it is used than was asked for") {
  start(6);
  {
    const std::vector<Bytes> want = expected(false, 4);
    Trainer trainer(tensors_of(false));
    OffloadedAdamWOptions options;
    options.chunk_elements = 2048;
    options.device_memory = 100'000;
    const std::uint64_t bytes = OffloadedAdamW::device_bytes(trainer.specs, options);
    REQUIRE(bytes > 0);
    REQUIRE(bytes <= options.device_memory);
    void* arena = nullptr;
    REQUIRE(cudaMalloc(&arena, bytes) == cudaSuccess);
    const std::uint64_t before = stand_in::live().device_bytes;
    options.device_arena = arena;
    {
      OffloadedAdamW optimizer(trainer.specs, options);
      REQUIRE(stand_in::live().device_bytes == before);
      REQUIRE((trained(trainer, optimizer, 4, false) == want));
    }
    cudaFree(arena);
  }
  require_nothing_left();
}

TEST_CASE("State on the device is read into, and comes from, an optimizer of the host") {
  start(7);
  Trainer first(tensors_of(false)), second(on_host(tensors_of(false))), third(tensors_of(false));
  OffloadedAdamWOptions options;
  options.chunk_elements = 1024;
  options.device_memory = 80'000;
  OffloadedAdamW a(first.specs, options), b(second.specs, {}), c(third.specs, options);
  for (unsigned number = 0; number < 3; ++number)
    for (const auto& [trainer, optimizer] : {std::pair(&first, &a), std::pair(&second, &b)})
      trainer->step(*optimizer, number);
  c.step(third.gradients_of(9), 1, third.stream());  // not fresh: all of it must be replaced
  const std::vector<Bytes> weights = second.all_weights();
  for (std::size_t i = 0; i < first.specs.size(); ++i) {
    const OptimizerTensor& spec = first.specs[i];
    c.reset(i);
    c.set_step_count(i, b.step_count(i));
    for (const StatePlane plane : {StatePlane::moment1, StatePlane::moment2, StatePlane::master}) {
      if (plane == StatePlane::master && spec.type == ElementType::fp32) continue;
      std::vector<float> values(spec.elements);
      b.read(i, plane, 0, spec.elements, weights[i].data(), values.data());
      c.write(i, plane, 0, spec.elements, values.data(), nullptr);
    }
  }
  const std::vector<TensorStep> steps = second.gradients_of(3);
  b.step(steps, 2);
  std::vector<TensorStep> on_device = third.gradients_of(3);
  for (std::size_t i = 0; i < weights.size(); ++i)
    stand_in::enqueue(third.stream(), "load", [&, i] {
      for (const TensorStep& s : on_device)
        if (s.tensor == i) std::copy(weights[i].begin(), weights[i].end(), static_cast<std::byte*>(s.weight));
    });
  c.step(on_device, 2, third.stream());
  const std::vector<Bytes> got = everything(c, third), want = everything(b, second);
  for (const TensorStep& s : steps) REQUIRE((got[s.tensor] == want[s.tensor]));
  for (std::size_t i = 0; i < first.specs.size(); ++i) c.reset(i);
  std::vector<float> moments(9001, 1);
  c.read(5, StatePlane::moment2, 0, 9001, nullptr, moments.data());
  REQUIRE(moments == std::vector<float>(9001));
}

TEST_CASE("Faults of the device: what is named is updated, every element is as before or after, nothing goes on") {
  start(0);
  std::vector<Bytes> before, after;
  {
    Trainer trainer(on_host(tensors_of(true)));
    OffloadedAdamW optimizer(trainer.specs, {});
    trainer.step(optimizer, 0);
    before = trainer.all_weights();
    trainer.step(optimizer, 1);
    after = trainer.all_weights();
  }
  const char* const call =
      GENERATE("cudaMemcpyAsync", "cudaLaunchKernel", "cudaEventRecord", "cudaStreamWaitEvent", "cudaEventSynchronize");
  std::size_t failures = 0;
  for (std::uint64_t nth = 1; nth < 100; nth += 2) {
    CAPTURE(call, nth);
    start(nth);
    Trainer trainer(tensors_of(true));
    OffloadedAdamWOptions options;
    options.chunk_elements = 1024;
    options.device_memory = 60'000;
    OffloadedAdamW optimizer(trainer.specs, options);
    trainer.step(optimizer, 0);
    const std::vector<TensorStep> steps = trainer.gradients_of(1);
    REQUIRE((trainer.all_weights() == before));
    stand_in::fail_call(call, nth, cudaErrorIllegalAddress);
    std::vector<std::size_t> updated;
    bool failed = false;
    try {
      optimizer.step(steps, 2, trainer.stream());
    } catch (const StepFailed& e) {
      failed = true;
      updated = e.updated;
      REQUIRE(std::string(e.what()).find("CUDA") != std::string::npos);
    }
    const bool waits = stand_in::fault_waits();
    stand_in::fail_call("", 0, cudaSuccess);
    REQUIRE(failed == !waits);
    if (!failed) break;
    ++failures;
    trainer.poison_gradients(true);  // nothing reads them any more
    const std::vector<Bytes> now = trainer.all_weights();
    for (const std::size_t i : updated) REQUIRE((now[i] == after[i]));
    std::size_t strange = 0;
    for (std::size_t i = 0; i < now.size(); ++i)
      for (std::size_t b = 0; b < now[i].size(); ++b) strange += now[i][b] != before[i][b] && now[i][b] != after[i][b];
    REQUIRE(strange == 0);
    REQUIRE_THROWS_AS(optimizer.step(steps, 2, trainer.stream()), Error);
  }
  REQUIRE(failures >= 3);
  require_nothing_left();
}

TEST_CASE("A device that is gone in a step: only tensors of the host can be called updated") {
  for (std::uint64_t nth = 1; nth < 60; nth += 4) {
    CAPTURE(nth);
    start(nth);
    Trainer trainer(tensors_of(true));
    OffloadedAdamWOptions options;
    options.chunk_elements = 1024;
    options.device_memory = 60'000;
    OffloadedAdamW optimizer(trainer.specs, options);
    trainer.step(optimizer, 0);
    const std::vector<TensorStep> steps = trainer.gradients_of(1);
    cudaStreamSynchronize(trainer.stream());
    stand_in::fail_call("cudaMemcpyAsync", nth, cudaErrorIllegalAddress, true);
    try {
      optimizer.step(steps, 2, trainer.stream());
      FAIL("the step went on");
    } catch (const StepFailed& e) {
      for (const std::size_t i : e.updated) {
        CAPTURE(i);
        REQUIRE((trainer.specs[i].elements == 0 || trainer.specs[i].device == kOnHost));
      }
    }
    stand_in::reset({});
  }
}

TEST_CASE("A device that fails after a step fails the next one, and nothing is called updated") {
  start(3);
  Trainer trainer(tensors_of(false));
  OffloadedAdamW optimizer(trainer.specs, {});
  trainer.step(optimizer, 0);
  cudaStreamSynchronize(trainer.stream());
  stand_in::enqueue(trainer.stream(), "breaks", [] { throw std::runtime_error("a kernel of the caller's"); });
  cudaStreamSynchronize(trainer.stream());
  try {
    trainer.step(optimizer, 1);
    FAIL("the step went on");
  } catch (const StepFailed& e) {
    for (const std::size_t i : e.updated) REQUIRE(trainer.specs[i].elements == 0);
    REQUIRE(std::string(e.what()).find("step before") != std::string::npos);
  }
}

TEST_CASE("Tensors that cannot be stepped on their device are refused in a line") {
  const auto refused = [](std::vector<OptimizerTensor> specs, const OffloadedAdamWOptions& options = {}) {
    try {
      OffloadedAdamW optimizer(std::move(specs), options);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const OptimizerTensor first{.name = "a", .elements = 10, .device = 0},
      second{.name = "b", .elements = 10, .device = 1};
  start(0, 2);
  REQUIRE(refused({first, second}).find("a is on CUDA device 0 and b on 1") != std::string::npos);
  REQUIRE(refused({second}).empty());
  REQUIRE(OffloadedAdamW::cuda_unavailable().empty());
  start(0, 1);
  REQUIRE(refused({second}).find("no CUDA device 1") != std::string::npos);
  for (const int devices : {0, -1}) {
    start(0, devices);
    const std::string text = refused({first});
    REQUIRE(text.find("no GPU can be used here") != std::string::npos);
    REQUIRE(text.find('\n') == std::string::npos);
  }
  start(0);
  OffloadedAdamWOptions options;
  options.device_memory = 1 << 20;
  OffloadedAdamW optimizer({first}, options);
  REQUIRE_THROWS_AS(optimizer.step({{.gradient_type = ElementType::fp16}}, 1, nullptr), InputError);
  REQUIRE(optimizer.step_count(0) == 0);
  REQUIRE_THROWS_AS(OffloadedAdamW::gradients_finite({{.tensor = 0}}, {first}, 1), InputError);
  REQUIRE_THROWS_AS(OffloadedAdamW({{.name = "large", .elements = 200 << 20, .device = 0}},
                                   {.host_memory = 1 << 20, .device_memory = UINT64_MAX}),
                    BudgetError);
}

TEST_CASE("The calling thread's device stays its own") {
  start(2, 2);
  {
    REQUIRE(cudaSetDevice(1) == cudaSuccess);
    OffloadedAdamWOptions options;
    options.device_memory = kAll;
    Trainer trainer(tensors_of(false));
    OffloadedAdamW optimizer(trainer.specs, options);
    trainer.step(optimizer, 0);
    int now = -1;
    REQUIRE(cudaGetDevice(&now) == cudaSuccess);
    REQUIRE(now == 1);
    cudaSetDevice(0);
  }
  require_nothing_left();
}
