// A network and a training loop of its own, out of core: a perceptron of three layers learns a function. Weights are
// pinned in panels of rows, so that no more than a panel has to be in one piece; gradients are handed over the same
// way.
//
//   own_trainer FOLDER HOST_MEMORY_BYTES [STEPS]      e.g. own_trainer runs/mlp 786432
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <vector>

#include "transload/transload.h"

namespace {

using transload::TrainingSession;
using Matrix = std::vector<float>;  // row-major, kBatch rows

constexpr std::size_t kBatch = 32, kIn = 32, kHidden = 512, kPanel = 64;
constexpr std::size_t kWidths[] = {kIn, kHidden, kHidden, 1};

/// y = ReLU(x · Wᵀ + b), the last layer's without ReLU; parameter 2·layer is W, 2·layer + 1 is b.
Matrix forward(TrainingSession& session, std::size_t layer, const Matrix& x) {
  const std::size_t in = kWidths[layer], out = kWidths[layer + 1];
  Matrix y(kBatch * out);
  for (std::size_t row = 0; row < out; row += kPanel) {
    const std::size_t rows = std::min(kPanel, out - row);
    const auto w = session.pin(2 * layer, row * in, rows * in);
    const auto b = session.pin(2 * layer + 1, row, rows);
    for (std::size_t s = 0; s < kBatch; ++s)
      for (std::size_t r = 0; r < rows; ++r) {
        float sum = b.fp32()[r];
        for (std::size_t k = 0; k < in; ++k) sum += w.fp32()[r * in + k] * x[s * in + k];
        y[s * out + row + r] = layer < 2 ? std::max(sum, 0.0f) : sum;
      }
  }
  return y;
}

/// Hands over the gradients of W and b and returns that of x.
Matrix backward(TrainingSession& session, std::size_t layer, const Matrix& x, const Matrix& dy) {
  const std::size_t in = kWidths[layer], out = kWidths[layer + 1];
  Matrix dx(kBatch * in), dw(kPanel * in), db(out);
  for (std::size_t row = 0; row < out; row += kPanel) {
    const std::size_t rows = std::min(kPanel, out - row);
    dw.assign(rows * in, 0);
    {
      const auto w = session.pin(2 * layer, row * in, rows * in);
      for (std::size_t s = 0; s < kBatch; ++s)
        for (std::size_t r = 0; r < rows; ++r) {
          const float d = dy[s * out + row + r];
          db[row + r] += d;
          for (std::size_t k = 0; k < in; ++k) {
            dw[r * in + k] += d * x[s * in + k];
            dx[s * in + k] += d * w.fp32()[r * in + k];
          }
        }
    }
    session.contribute(2 * layer, row * in, rows * in, dw.data());
  }
  session.contribute(2 * layer + 1, 0, out, db.data());
  return dx;
}

/// One step on a fresh batch; returns the mean squared error before it.
float train_step(TrainingSession& session, std::mt19937& random) {
  std::normal_distribution<float> normal;
  Matrix inputs[4] = {Matrix(kBatch * kIn), {}, {}, {}};
  Matrix targets(kBatch);
  for (float& v : inputs[0]) v = normal(random);
  for (std::size_t s = 0; s < kBatch; ++s) targets[s] = std::sin(inputs[0][s * kIn]) + 0.5f * inputs[0][s * kIn + 1];
  for (std::size_t layer = 0; layer < 3; ++layer) inputs[layer + 1] = forward(session, layer, inputs[layer]);
  float loss = 0;
  Matrix d(kBatch);
  for (std::size_t s = 0; s < kBatch; ++s) {
    const float error = inputs[3][s] - targets[s];
    loss += error * error / kBatch;
    d[s] = 2 * error / kBatch;
  }
  for (std::size_t layer = 3; layer-- > 0;) {
    d = backward(session, layer, inputs[layer], d);
    for (std::size_t i = 0; layer > 0 && i < d.size(); ++i) d[i] = inputs[layer][i] > 0 ? d[i] : 0;
  }
  session.step({.learning_rate = 1e-3});
  return loss;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) return std::fprintf(stderr, "usage: own_trainer FOLDER HOST_MEMORY_BYTES [STEPS]\n"), 2;
  std::vector<transload::Parameter> parameters;
  for (std::size_t l = 0; l < 3; ++l) {
    parameters.push_back({"layer" + std::to_string(l) + ".weight", {kWidths[l + 1], kWidths[l]}});
    parameters.push_back({"layer" + std::to_string(l) + ".bias", {kWidths[l + 1]}});
  }
  const auto initializer = [](std::size_t p, std::uint64_t first, std::uint64_t count, float* values) {
    const float scale = p % 2 == 1 ? 0.0f : std::sqrt(2.0f / static_cast<float>(kWidths[p / 2]));
    for (std::uint64_t i = 0; i < count; ++i)  // a hash of the element: the same for any layout
      values[i] = scale * std::sin(static_cast<float>((first + i) * 2654435761u % 100003 + 7 * p));
  };
  const std::uint64_t memory = std::strtoull(argv[2], nullptr, 10), workspace = 2 * kPanel * kHidden * sizeof(float);
  TrainingSession session(parameters,
                          {.folder = argv[1], .host_memory = memory, .chunk_size = 64 * 1024, .workspace = workspace},
                          initializer);
  const std::uint64_t steps = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 120;
  while (session.steps() < steps) {
    std::mt19937 random(static_cast<unsigned>(session.steps()));  // by step: a resumed run sees the same batches
    const float loss = train_step(session, random);
    if (session.steps() % 20 == 0 || session.steps() == 1)
      std::printf("step %3d  loss %.6f (%a)\n", static_cast<int>(session.steps()), loss, static_cast<double>(loss));
  }
  session.commit("done");
  const transload::MemoryUse use = session.memory_use();
  std::fprintf(stderr, "host peak %.2f of %.2f MiB; NVMe %.1f MiB read, %.1f MiB written\n", use.host_peak / 1048576.0,
               use.host_budget / 1048576.0, use.nvme_read / 1048576.0, use.nvme_written / 1048576.0);
} catch (const std::exception& e) {
  std::fprintf(stderr, "own_trainer: %s\n", e.what());
  return 1;
}
