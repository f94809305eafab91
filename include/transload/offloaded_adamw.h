// OffloadedAdamW: AdamW over tensors that the caller owns, while the optimizer's state lives within a budget of host
// memory and on NVMe.
//
//   OffloadedAdamW optimizer({{"w", elements, ElementType::bf16}}, {.host_memory = 1 << 30, .nvme = "/mnt/nvme"});
//   optimizer.step({{.tensor = 0, .weight = w, .gradient = g, .gradient_type = ElementType::bf16}}, threads);
//
// The tensor itself is the weight; nothing here holds weights. State of a tensor, by its type:
//   fp32  moments
//   bf16  moments and 16 bits of residue an element: weight + residue is the exact fp32 master. Runs of 1024 elements
//         (from the tensor's start) whose content is not what the last step left (xxh3 of their bytes, computed in the
//         update's pass) start from the tensor, residue zero.
//   fp16  moments and an fp32 master. An element whose rounded master is not what the tensor holds restarts from it.
// What the numbers come out as depends on neither budget, chunk size, tier nor threads, bit for bit.
//
// Tensors on a CUDA device (OptimizerTensor::device; one device for all of them, beside tensors of the host). Weights
// and gradients of a step are device memory then, and step() takes the caller's stream:
//   - What that stream holds at the call comes before everything here; what it gets afterwards finds the new weights.
//   - State on the host or NVMe: gradient and weight come down into pinned staging (three slots of a chunk, part of
//     host_memory), the CPU updates, the weight goes up; both directions run beside the CPU's work. When step() returns
//     gradients have been read and may be overwritten; weights are on their way, and the caller's stream waits for
//     them.
//   - State in device_memory (whole chunks of fp32 and bf16 tensors with fp32 moments, as many as fit): updated by
//     kernels in the caller's stream, which read the gradient when the stream gets there.
//   - The bits are those of the same tensors on the host.
// Failures: no CUDA in the build, no driver, no such device, two devices: InputError at construction. Too little device
// memory: BudgetError. A copy or kernel that is refused in a step: StepFailed as for a disk, after all copies have
// ended; `updated` names tensors only whose weights are known to have arrived. A copy that fails after step() has
// returned is the next step's StepFailed.
//
// The folder in `nvme` is scratch: a private subfolder, not synced, removed at the end; those of dead processes are
// reclaimed, those of living ones never touched.
//
// Threading: one caller at a time. Errors (base/error.h): InputError (bad values), BudgetError (memory; numbers in the
// text), IoError (disk; errno), DamageError (a checksum). After a step has failed midway every call but the destructor
// throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace transload {

enum class ElementType : std::uint8_t { fp32, bf16, fp16 };
/// OptimizerTensor::device of memory of the host.
inline constexpr int kOnHost = -1;
enum class StatePlane : std::uint8_t { moment1, moment2, master };

struct OptimizerTensor {
  std::string name;            ///< unique; for messages
  std::uint64_t elements = 0;  ///< may be 0
  ElementType type = ElementType::fp32;
  std::uint64_t key = 0;  ///< what stochastic rounding knows the tensor by; the same after a rebuild
  int device = kOnHost;   ///< where the memory of weight and gradient is: the host, or a CUDA device by number
};

struct OffloadedAdamWOptions {
  std::uint64_t host_memory = 0;     ///< bytes of state and staging together; never exceeded. 0: what all state needs
  std::string nvme;                  ///< existing folder; empty: everything in host memory
  std::uint64_t chunk_elements = 0;  ///< 0: chosen from the budget; else a multiple of 1024
  ElementType moments = ElementType::fp32;  ///< or bf16, rounded stochastically
  std::uint64_t seed = 0;                   ///< of stochastic rounding, with step, key and element
  bool io_uring = true;                     ///< false: pread and pwrite threads
  std::uint64_t device_memory = 0;          ///< bytes on the tensors' device for state that is updated there
  void* device_arena = nullptr;  ///< device_bytes() of them, the caller's, idle, 256-byte aligned; null: taken here
  std::string record;            ///< file of the run record (docs/formats.md); empty: none
};

/// One tensor's part in a step. Contiguous elements; both are read and `weight` is written before step() returns, where
/// they are memory of the host. Chunks in device_memory take gradients in fp32 and bf16.
struct TensorStep {
  std::size_t tensor = 0;
  void* weight = nullptr;
  const void* gradient = nullptr;  ///< of gradient_type, whatever the tensor's type is
  ElementType gradient_type = ElementType::fp32;
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
};

/// Bytes unless said otherwise.
struct OptimizerReport {
  std::uint64_t host_budget = 0, host_peak = 0, host_reserved = 0;
  std::uint64_t state_bytes = 0;                  ///< of all planes, wherever they lie
  std::uint64_t nvme_bytes = 0;                   ///< size of the files
  std::uint64_t nvme_read = 0, nvme_written = 0;  ///< moved so far
  std::uint64_t table_bytes = 0;                  ///< outside the budget: hashes, layout
  std::uint64_t steps = 0;                        ///< calls of step()
  double wait_s = 0, step_s = 0;                  ///< waited for room or content; in step() altogether
  std::uint64_t hits = 0, late = 0, demand = 0;   ///< accesses: ready, on their way, fetched on demand
  std::string io_path, io_reason, folder;         ///< io_reason: why not the faster path, empty when it is
  bool direct = false;
  std::uint64_t device_state_bytes = 0;               ///< of state_bytes, on the device
  std::uint64_t device_read = 0, device_written = 0;  ///< copied so far: gradients and weights down, weights up
  std::string staging_reason;                         ///< why staging is not page-locked, empty when it is
};

/// A step that ended in the middle: what() says why, `updated` which tensors have new weights in full.
class StepFailed : public std::runtime_error {
 public:
  StepFailed(const std::string& message, std::vector<std::size_t> tensors)
      : std::runtime_error(message), updated(std::move(tensors)) {}
  std::vector<std::size_t> updated;
};

class OffloadedAdamW {
 public:
  OffloadedAdamW(std::vector<OptimizerTensor> tensors, const OffloadedAdamWOptions& options);
  ~OffloadedAdamW();

  /// Least host_memory for these tensors with and without a folder, bytes.
  static std::uint64_t least_memory(const std::vector<OptimizerTensor>& tensors, const OffloadedAdamWOptions& options);

  /// Bytes of device_memory that would be used, at most options.device_memory.
  static std::uint64_t device_bytes(const std::vector<OptimizerTensor>& tensors, const OffloadedAdamWOptions& options);
  /// Why tensors on CUDA devices cannot be stepped by this program on this machine; empty where they can.
  static std::string cuda_unavailable();

  /// One AdamW step of each tensor listed (each at most once); others are not touched. Counts of steps are per tensor.
  /// `stream`: the caller's cudaStream_t where some are on a device (null: the default stream), else not looked at.
  /// Throws StepFailed when some tensors were updated and others were not.
  void step(const std::vector<TensorStep>& tensors, int threads, void* stream = nullptr);
  /// True where no element of any gradient is NaN or infinite. Memory of the host alone: InputError otherwise.
  static bool gradients_finite(const std::vector<TensorStep>& tensors, const std::vector<OptimizerTensor>& specs,
                               int threads);

  std::uint64_t step_count(std::size_t tensor) const;
  void set_step_count(std::size_t tensor, std::uint64_t steps);

  /// Elements [first, first + count) of a plane as fp32; first is a multiple of 1024, the end too or the tensor's end.
  /// master: of a bf16 or fp16 tensor, what the next step would start from, given the tensor's `weight`: memory of the
  /// host, here and in write(); of a tensor on a device a copy.
  void read(std::size_t tensor, StatePlane plane, std::uint64_t first, std::uint64_t count, const void* weight,
            float* out);
  /// The opposite; moments given to an optimizer with bf16 moments are rounded to nearest. master: where `weight` is
  /// not null, the tensor's elements get the rounded values, else they are expected to have them at the next step.
  void write(std::size_t tensor, StatePlane plane, std::uint64_t first, std::uint64_t count, const float* in,
             void* weight);
  /// As at construction: no steps, zero moments, no residue.
  void reset(std::size_t tensor);

  /// Gives `bytes` of the budget to the caller (their pages go back to the system) until the next call; 0 returns them.
  /// False: more than can be spared; nothing changed.
  bool reserve(std::uint64_t bytes);
  std::uint64_t reservable() const;

  OptimizerReport report() const;

  /// Opaque.
  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace transload
