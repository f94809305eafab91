// Transload's C++ API: train a network of your own while its state lives outside memory.
//
//   TrainingSession session({{"w", {out, in}}, {"b", {out}}}, options, initializer);
//   for (…) {
//     { Weights w = session.pin(0);  … w.fp32() … }           // forward, backward
//     session.contribute(0, 0, out * in, gradient_of_w);       // every trainable parameter, `uses` times
//     session.step({.learning_rate = 1e-3});                   // AdamW, clipped; applied when weights are next wanted
//   }
//   session.commit("my own state as text");
//
// Parameters are numbered in the order in which they are declared, which should be the order of their first use. A
// session holds weights, moments and gradients in chunks: within `host_memory` bytes, the rest in the store in
// `folder`. What the numbers come out as does not depend on `host_memory` or `chunk_size`, bit for bit.
//
// A session belongs to one thread. Errors are std::runtime_error with a whole sentence; after an I/O error the session
// stays failed and the store is as last committed. A folder that holds a commit is resumed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace transload {

struct Parameter {
  std::string name;                  ///< unique
  std::vector<std::uint64_t> shape;  ///< row-major
  bool frozen = false;               ///< no gradient, no moments
  std::uint32_t uses = 1;            ///< how many times a step contributes gradients to it
};

enum class Precision : std::uint8_t {
  bf16,  ///< weights and gradients in bf16; the fp32 master is kept exactly
  fp32
};

struct TrainingSessionOptions {
  std::string folder;                          ///< run folder; created, locked while in use
  std::uint64_t host_memory = 0;               ///< bytes of chunks and workspace together; never exceeded
  std::uint64_t chunk_size = 2 * 1024 * 1024;  ///< weight bytes of a chunk; a store keeps its own
  /// Bytes for pinned weights that do not lie in one piece; 0: the largest parameter, enough for one pin at a time.
  std::uint64_t workspace = 0;
  Precision precision = Precision::fp32;
  double clip_norm = 1.0;  ///< of the whole gradient; 0: no clipping
  int threads = 0;         ///< of the update; 0: all that the process may use
};

/// Hyperparameters of one step. Weight decay is for parameters of two or more dimensions.
struct AdamW {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0;
};

struct StepOutcome {
  bool applied = true;  ///< false: a gradient was not finite, and nothing was changed
  double gradient_norm = 0;
};

struct MemoryUse {
  std::uint64_t host_budget = 0, host_peak = 0, nvme_read = 0, nvme_written = 0;
};

/// Elements of one parameter, in one piece of memory while this lives. Must be gone before step() and commit().
class Weights {
 public:
  Weights(Weights&&) noexcept;
  Weights& operator=(Weights&&) = delete;
  ~Weights();
  const float* fp32() const { return static_cast<const float*>(data_); }                  ///< Precision::fp32
  const std::uint16_t* bf16() const { return static_cast<const std::uint16_t*>(data_); }  ///< Precision::bf16

 private:
  friend class TrainingSession;
  struct Hold;
  explicit Weights(std::unique_ptr<Hold> hold);
  std::unique_ptr<Hold> hold_;
  const void* data_ = nullptr;
};

class TrainingSession {
 public:
  /// Fills values[count], elements [first, first + count) of a parameter; called at the first opening only.
  using Initializer =
      std::function<void(std::size_t parameter, std::uint64_t first, std::uint64_t count, float* values)>;

  /// Takes memory, makes the store or opens its last commit.
  TrainingSession(std::vector<Parameter> parameters, const TrainingSessionOptions& options,
                  const Initializer& initializer);
  ~TrainingSession();  ///< closes; what was not committed is lost

  std::uint64_t steps() const;      ///< taken so far, those before a resume counted
  const std::string& note() const;  ///< what the last commit was given; empty at the first opening

  Weights pin(std::size_t parameter);  ///< all elements
  Weights pin(std::size_t parameter, std::uint64_t first, std::uint64_t count);
  /// Adds to the gradient of elements [first, first + count). Each use covers all elements once, ascending.
  void contribute(std::size_t parameter, std::uint64_t first, std::uint64_t count, const float* gradient);
  StepOutcome step(const AdamW& hyper);
  /// Makes the state durable: after this returns, a kill loses nothing of it.
  void commit(const std::string& note);

  MemoryUse memory_use() const;

  /// Opaque.
  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace transload
