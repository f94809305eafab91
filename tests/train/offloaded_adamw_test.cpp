// OffloadedAdamW: the same bits wherever state lies, against a plain reference; what the caller writes counts; reading,
// writing, resetting state; budgets; a drive that fails.
#include "transload/offloaded_adamw.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/dtype.h"
#include "base/error.h"
#include "base/faults.h"
#include "base/size.h"
#include "kernels/cpu/adamw.h"
#include "kernels/cpu/half.h"
#include "train/temp_folder.h"

using namespace transload;

namespace {

std::uint64_t bytes_of(ElementType t) { return t == ElementType::fp32 ? 4 : 2; }

void put(ElementType type, std::byte* to, std::size_t i, float value) {
  if (type == ElementType::fp32) reinterpret_cast<float*>(to)[i] = value;
  if (type == ElementType::bf16) reinterpret_cast<bf16*>(to)[i] = split_master(value).weight;
  if (type == ElementType::fp16) reinterpret_cast<kernels::half*>(to)[i] = kernels::to_half(value);
}
float get(ElementType type, const std::byte* from, std::size_t i) {
  if (type == ElementType::fp32) return reinterpret_cast<const float*>(from)[i];
  if (type == ElementType::bf16) return to_float(reinterpret_cast<const bf16*>(from)[i]);
  return kernels::to_float(reinterpret_cast<const kernels::half*>(from)[i]);
}

/// Tensors of a caller: odd sizes, all types, one of no elements, one of several chunks.
struct Model {
  std::vector<OptimizerTensor> specs;
  std::vector<std::vector<std::byte>> weights, gradients;

  explicit Model(std::vector<ElementType> types = {ElementType::fp32, ElementType::bf16, ElementType::fp16}) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0, 0.5f);
    for (const ElementType type : types)
      for (const std::uint64_t elements : {1u, 0u, 127u, 1024u, 1025u, 9000u, 70001u}) {
        const std::size_t i = specs.size();
        specs.push_back({.name = "t" + std::to_string(i), .elements = elements, .type = type, .key = i});
        weights.emplace_back(elements * bytes_of(type));
        gradients.emplace_back(elements * bytes_of(type));
        for (std::size_t e = 0; e < elements; ++e) put(type, weights[i].data(), e, normal(random));
      }
  }

  /// Gradients of a step and the tensors' parts in it; some have none.
  std::vector<TensorStep> step(unsigned number) {
    std::mt19937 random(100 + number);
    std::normal_distribution<float> normal;
    std::vector<TensorStep> steps;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      for (std::size_t e = 0; e < specs[i].elements; ++e) put(specs[i].type, gradients[i].data(), e, normal(random));
      if ((i + number) % 5 == 4) continue;
      steps.push_back({.tensor = i,
                       .weight = weights[i].data(),
                       .gradient = gradients[i].data(),
                       .gradient_type = specs[i].type,
                       .learning_rate = 1e-3 * (1 + static_cast<double>(i % 3)),
                       .weight_decay = i % 2 == 0 ? 0.1 : 0});
    }
    return steps;
  }
};

/// The same with an fp32 master and moments kept by hand, element after element.
struct Reference {
  std::vector<std::vector<float>> master, moment1, moment2;
  std::vector<std::uint64_t> steps;
  explicit Reference(const Model& model) : steps(model.specs.size()) {
    for (std::size_t i = 0; i < model.specs.size(); ++i) {
      const std::uint64_t n = model.specs[i].elements;
      master.emplace_back(n);
      for (std::size_t e = 0; e < n; ++e) master[i][e] = get(model.specs[i].type, model.weights[i].data(), e);
      moment1.emplace_back(n);
      moment2.emplace_back(n);
    }
  }
  void step(const Model& model, const std::vector<TensorStep>& list) {
    for (const TensorStep& s : list) {
      const std::uint64_t n = model.specs[s.tensor].elements;
      std::vector<float> gradient(n);
      for (std::size_t e = 0; e < n; ++e)
        gradient[e] = get(model.specs[s.tensor].type, model.gradients[s.tensor].data(), e);
      kernels::AdamwRun run;
      run.weight_f32 = master[s.tensor].data();
      run.moment1 = moment1[s.tensor].data();
      run.moment2 = moment2[s.tensor].data();
      run.gradient_f32 = gradient.data();
      const kernels::AdamwHyper hyper{s.learning_rate, s.beta1, s.beta2, s.epsilon, s.weight_decay};
      kernels::adamw(run, static_cast<std::int64_t>(n), kernels::coefficients(hyper, ++steps[s.tensor]), 1);
    }
  }
};

std::vector<float> plane(OffloadedAdamW& optimizer, const Model& model, std::size_t i, StatePlane which) {
  std::vector<float> values(model.specs[i].elements);
  if (!values.empty()) optimizer.read(i, which, 0, values.size(), model.weights[i].data(), values.data());
  return values;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
}

void require_agrees(OffloadedAdamW& optimizer, const Model& model, const Reference& reference) {
  for (std::size_t i = 0; i < model.specs.size(); ++i) {
    INFO(model.specs[i].name);
    REQUIRE(optimizer.step_count(i) == reference.steps[i]);
    REQUIRE(same(plane(optimizer, model, i, StatePlane::moment1), reference.moment1[i]));
    REQUIRE(same(plane(optimizer, model, i, StatePlane::moment2), reference.moment2[i]));
    if (model.specs[i].type != ElementType::fp32)
      REQUIRE(same(plane(optimizer, model, i, StatePlane::master), reference.master[i]));
    std::vector<std::byte> rounded(model.weights[i].size());
    for (std::size_t e = 0; e < model.specs[i].elements; ++e)
      put(model.specs[i].type, rounded.data(), e, reference.master[i][e]);
    REQUIRE(rounded == model.weights[i]);
  }
}

OffloadedAdamWOptions in_memory() { return {}; }

OffloadedAdamWOptions on_disk(const TempFolder& folder, const Model& model, double budgets = 1,
                              std::uint64_t chunk = 1024) {
  std::filesystem::create_directories(folder.path("nvme"));
  OffloadedAdamWOptions o;
  o.nvme = folder.path("nvme");
  o.chunk_elements = chunk;
  o.host_memory =
      static_cast<std::uint64_t>(static_cast<double>(OffloadedAdamW::least_memory(model.specs, o)) * budgets);
  return o;
}

}  // namespace

TEST_CASE("A step is the reference's, bit for bit, wherever state lies") {
  struct Case {
    const char* name;
    double budgets;  ///< of the least; 0: everything in memory
    std::uint64_t chunk;
    int threads;
    bool uring;
  };
  const Case c = GENERATE(Case{"in memory", 0, 0, 2, true}, Case{"least", 1, 1024, 1, true},
                          Case{"pread", 1.3, 4096, 4, false}, Case{"three times", 3, 16384, 2, true});
  INFO(c.name);
  TempFolder folder;
  Model model;
  Reference reference(model);
  OffloadedAdamWOptions options = c.budgets == 0 ? in_memory() : on_disk(folder, model, c.budgets, c.chunk);
  options.io_uring = c.uring;
  OffloadedAdamW optimizer(model.specs, options);
  for (unsigned number = 0; number < 6; ++number) {
    const std::vector<TensorStep> steps = model.step(number);
    optimizer.step(steps, c.threads);
    reference.step(model, steps);
    if (number == 3) require_agrees(optimizer, model, reference);
  }
  require_agrees(optimizer, model, reference);
  const OptimizerReport report = optimizer.report();
  REQUIRE(report.steps == 6);
  REQUIRE(report.host_peak <= report.host_budget);
  REQUIRE((c.budgets == 0 || report.nvme_read > 0));
  REQUIRE((c.budgets != 0 || report.nvme_bytes == 0));
}

TEST_CASE("bf16 moments are the same for any budget, chunk and number of threads, and near the fp32 ones") {
  TempFolder folder;
  const auto run = [&](OffloadedAdamWOptions options, int threads) {
    Model model({ElementType::fp32});
    options.moments = ElementType::bf16;
    options.seed = 9;
    OffloadedAdamW optimizer(model.specs, options);
    for (unsigned number = 0; number < 5; ++number) optimizer.step(model.step(number), threads);
    return std::pair(model.weights, plane(optimizer, model, 6, StatePlane::moment1));
  };
  const Model shapes({ElementType::fp32});
  const auto whole = run(in_memory(), 1);
  REQUIRE(run(on_disk(folder, shapes, 1.2, 2048), 4) == whole);
  OffloadedAdamWOptions other = in_memory();
  other.chunk_elements = 8192;
  REQUIRE(run(other, 2) == whole);
  Model exact({ElementType::fp32});
  Reference reference(exact);
  for (unsigned number = 0; number < 5; ++number) reference.step(exact, exact.step(number));
  double distance = 0;
  for (std::size_t e = 0; e < whole.second.size(); ++e) {
    REQUIRE(std::isfinite(whole.second[e]));
    distance = std::max(distance, static_cast<double>(std::abs(whole.second[e] - reference.moment1[6][e])));
  }
  REQUIRE(distance > 0);
  REQUIRE(distance < 5 * 0x1p-8);  // five roundings of values below one
}

TEST_CASE("What the caller writes into a bf16 tensor is where the next step starts, run by run") {
  Model model({ElementType::bf16});
  Reference reference(model);
  OffloadedAdamW optimizer(model.specs, in_memory());
  const auto both = [&](unsigned number) {
    const auto steps = model.step(number);
    optimizer.step(steps, 2);
    reference.step(model, steps);
  };
  both(0);
  both(1);
  auto* const weights = reinterpret_cast<bf16*>(model.weights[6].data());
  weights[2050] = round_to_bf16(3.0f);
  // The run [2048, 3072) restarts from the tensor, its neighbours keep their residue.
  for (std::size_t e = 2048; e < 3072; ++e) reference.master[6][e] = to_float(weights[e]);
  require_agrees(optimizer, model, reference);
  both(2);
  require_agrees(optimizer, model, reference);
}

TEST_CASE("What the caller writes into an fp16 tensor restarts that element alone") {
  Model model({ElementType::fp16});
  Reference reference(model);
  OffloadedAdamW optimizer(model.specs, in_memory());
  const auto both = [&](unsigned number) {
    const auto steps = model.step(number);
    optimizer.step(steps, 2);
    reference.step(model, steps);
  };
  both(0);
  reinterpret_cast<kernels::half*>(model.weights[5].data())[77] = kernels::to_half(3.0f);
  reference.master[5][77] = 3.0f;
  both(1);
  require_agrees(optimizer, model, reference);
}

TEST_CASE("State that was read and written into another optimizer goes on to the same bits") {
  TempFolder folder;
  Model model;
  OffloadedAdamW first(model.specs, in_memory());
  for (unsigned number = 0; number < 3; ++number) first.step(model.step(number), 2);
  Model copy = model;
  OffloadedAdamW second(copy.specs, on_disk(folder, copy, 2, 4096));
  second.step(copy.step(7), 1);  // not fresh: all of it must be replaced
  copy = model;
  for (std::size_t i = 0; i < model.specs.size(); ++i) {
    second.reset(i);
    second.set_step_count(i, first.step_count(i));
    if (model.specs[i].elements == 0) continue;
    for (const StatePlane which : {StatePlane::moment1, StatePlane::moment2, StatePlane::master}) {
      if (which == StatePlane::master && model.specs[i].type == ElementType::fp32) continue;
      const std::vector<float> values = plane(first, model, i, which);
      second.write(i, which, 0, values.size(), values.data(), nullptr);
    }
  }
  for (unsigned number = 3; number < 5; ++number) {
    first.step(model.step(number), 2);
    second.step(copy.step(number), 2);
  }
  REQUIRE(copy.weights == model.weights);
  for (std::size_t i = 0; i < model.specs.size(); ++i)
    REQUIRE(same(plane(first, model, i, StatePlane::moment2), plane(second, copy, i, StatePlane::moment2)));
}

TEST_CASE("A master that is written with the tensor sets the tensor") {
  Model model({ElementType::bf16, ElementType::fp16});
  OffloadedAdamW optimizer(model.specs, in_memory());
  optimizer.step(model.step(0), 1);
  for (const std::size_t i : {6u, 13u}) {
    std::vector<float> values = plane(optimizer, model, i, StatePlane::master);
    for (float& v : values) v = -2 * v + 1e-4f;
    optimizer.write(i, StatePlane::master, 0, values.size(), values.data(), model.weights[i].data());
    REQUIRE(same(plane(optimizer, model, i, StatePlane::master), values));
    for (std::size_t e = 0; e < values.size(); e += 997)
      REQUIRE(std::abs(get(model.specs[i].type, model.weights[i].data(), e) - values[e]) <=
              std::abs(values[e]) * 0x1p-8f);
  }
}

TEST_CASE("A reset tensor has no past") {
  Model model;
  OffloadedAdamW optimizer(model.specs, in_memory());
  optimizer.step(model.step(0), 1);
  const Reference fresh(model);
  for (std::size_t i = 0; i < model.specs.size(); ++i) optimizer.reset(i);
  require_agrees(optimizer, model, fresh);
}

TEST_CASE("A reservation is within the budget, comes back, and changes no bit") {
  TempFolder folder;
  Model model;
  Reference reference(model);
  OffloadedAdamW optimizer(model.specs, on_disk(folder, model, 4, 4096));
  auto steps = model.step(0);
  optimizer.step(steps, 2);
  reference.step(model, steps);
  const std::uint64_t most = optimizer.reservable();
  REQUIRE(most > 0);
  REQUIRE(!optimizer.reserve(most + 1));
  REQUIRE(optimizer.reserve(most));
  require_agrees(optimizer, model, reference);
  REQUIRE(optimizer.report().host_reserved == most);
  steps = model.step(1);
  optimizer.step(steps, 2);
  reference.step(model, steps);
  REQUIRE(optimizer.report().host_reserved == 0);
  require_agrees(optimizer, model, reference);
}

TEST_CASE("Budgets and values that cannot work are refused with the numbers") {
  TempFolder folder;
  const Model model;
  OffloadedAdamWOptions small = on_disk(folder, model);
  small.host_memory -= 4096;
  REQUIRE_THROWS_AS(OffloadedAdamW(model.specs, small), BudgetError);
  OffloadedAdamWOptions memory = in_memory();
  memory.host_memory = OffloadedAdamW::least_memory(model.specs, memory);
  REQUIRE(OffloadedAdamW(model.specs, memory).report().nvme_bytes == 0);
  memory.host_memory -= 1;
  REQUIRE_THROWS_AS(OffloadedAdamW(model.specs, memory), BudgetError);
  OffloadedAdamWOptions missing = on_disk(folder, model);
  missing.nvme = folder.path("missing");
  REQUIRE_THROWS_AS(OffloadedAdamW(model.specs, missing), InputError);
  OffloadedAdamWOptions odd = in_memory();
  odd.chunk_elements = 1000;
  REQUIRE_THROWS_AS(OffloadedAdamW(model.specs, odd), InputError);
  REQUIRE_THROWS_AS(OffloadedAdamW({{"a", 1}, {"a", 2}}, in_memory()), InputError);
  OffloadedAdamW optimizer(model.specs, in_memory());
  std::vector<float> values(1024);
  REQUIRE_THROWS_AS(optimizer.read(5, StatePlane::moment1, 512, 512, nullptr, values.data()), InputError);
  REQUIRE_THROWS_AS(optimizer.read(5, StatePlane::master, 0, 1024, nullptr, values.data()), InputError);
  REQUIRE_THROWS_AS(optimizer.read(99, StatePlane::moment1, 0, 0, nullptr, values.data()), InputError);
  std::vector<float> weight(1), gradient(1);
  REQUIRE_THROWS_AS(optimizer.step({{.tensor = 0, .weight = weight.data(), .gradient = gradient.data()},
                                    {.tensor = 0, .weight = weight.data(), .gradient = gradient.data()}},
                                   1),
                    InputError);
}

TEST_CASE("A drive that fails in a step: what was updated is named, nothing goes on, and the folder is removed") {
  const auto kind = GENERATE(os::OpKind::read, os::OpKind::write);
  TempFolder folder;
  Model model;
  {
    OffloadedAdamWOptions options = on_disk(folder, model);
    options.io_uring = false;
    OffloadedAdamW optimizer(model.specs, options);
    optimizer.step(model.step(0), 1);
    const std::vector<std::vector<std::byte>> before = model.weights;
    bool failed = false;
    {
      const os::InterceptScope scope(os::fail_at(os::ops({kind}, "/store/slots"), 40, -EIO, true));
      try {
        for (unsigned number = 1; number < 4; ++number) optimizer.step(model.step(number), 1);
      } catch (const StepFailed& e) {
        failed = true;
        REQUIRE(std::string(e.what()).find("Updated: ") != std::string::npos);
        for (const std::size_t i : e.updated) REQUIRE((before[i].empty() || model.weights[i] != before[i]));
      }
    }
    REQUIRE(failed);
    REQUIRE_THROWS_AS(optimizer.step(model.step(4), 1), Error);
    std::vector<float> values(1);
    REQUIRE_THROWS_AS(optimizer.read(0, StatePlane::moment1, 0, 1, nullptr, values.data()), Error);
  }
  REQUIRE(std::filesystem::is_empty(folder.path("nvme")));
}

TEST_CASE("What could not be read is not used: every element is as before the step, or as after it") {
  TempFolder folder;
  for (std::uint64_t nth = 1; nth < 60; nth += 3) {
    CAPTURE(nth);
    Model model, twin;
    OffloadedAdamWOptions options = on_disk(folder, model, 2);
    options.io_uring = nth % 2 == 0;
    OffloadedAdamW optimizer(model.specs, options), whole(twin.specs, in_memory());
    for (unsigned number = 0; number < 2; ++number) {
      optimizer.step(model.step(number), 2);
      whole.step(twin.step(number), 2);
    }
    const std::vector<std::vector<std::byte>> before = model.weights;
    whole.step(twin.step(2), 2);
    const os::InterceptScope scope(os::fail_at(os::ops({os::OpKind::read}, "/store/slots"), nth, -EIO));
    REQUIRE_THROWS_AS(optimizer.step(model.step(2), 2), StepFailed);
    std::size_t strange = 0;
    for (std::size_t i = 0; i < before.size(); ++i)
      for (std::size_t b = 0; b < before[i].size(); ++b)
        strange += model.weights[i][b] != before[i][b] && model.weights[i][b] != twin.weights[i][b];
    REQUIRE(strange == 0);
  }
}

TEST_CASE("State that cannot be read is an error, not numbers") {
  TempFolder folder;
  Model model, twin;
  OffloadedAdamW optimizer(model.specs, on_disk(folder, model, 1.5)), whole(twin.specs, in_memory());
  optimizer.step(model.step(0), 2);
  whole.step(twin.step(0), 2);
  const std::vector<float> expected = plane(whole, twin, 6, StatePlane::moment1);
  const os::InterceptScope scope(os::fail_at(os::ops({os::OpKind::read}, "/store/slots"), 1, -EIO, true));
  const auto read_piece_by_piece = [&] {
    std::vector<float> piece(1024);
    for (std::uint64_t first = 0; first < expected.size(); first += piece.size()) {
      const std::uint64_t n = std::min<std::uint64_t>(piece.size(), expected.size() - first);
      optimizer.read(6, StatePlane::moment1, first, n, nullptr, piece.data());
      REQUIRE(std::memcmp(piece.data(), expected.data() + first, n * 4) == 0);
    }
  };
  REQUIRE_THROWS_AS(read_piece_by_piece(), IoError);
}

TEST_CASE("Finite gradients are told from others, in every type") {
  for (const ElementType type : {ElementType::fp32, ElementType::bf16, ElementType::fp16}) {
    Model model({type});
    const auto steps = model.step(0);
    REQUIRE(OffloadedAdamW::gradients_finite(steps, model.specs, 2));
    for (const float bad : {std::nanf(""), -INFINITY}) {
      put(type, model.gradients[6].data(), 70000, bad);
      REQUIRE(!OffloadedAdamW::gradients_finite(steps, model.specs, 2));
    }
  }
}

TEST_CASE("The record has a header and a line a step") {
  TempFolder folder;
  Model model;
  OffloadedAdamWOptions options = on_disk(folder, model, 2);
  options.record = folder.path("record.jsonl");
  OffloadedAdamW optimizer(model.specs, options);
  for (unsigned number = 0; number < 3; ++number) optimizer.step(model.step(number), 1);
  std::ifstream in(options.record);
  int headers = 0, steps = 0;
  for (std::string line; std::getline(in, line);) {
    headers += line.find("\"event\":\"run\"") != std::string::npos;
    steps += line.find("\"event\":\"step\"") != std::string::npos;
  }
  REQUIRE(headers == 1);
  REQUIRE(steps == 3);
}
