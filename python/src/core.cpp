// transload._core: the optimizer over tensors that a caller owns (include/transload/offloaded_adamw.h), for Python.
//
// Memory crosses as addresses, so that neither PyTorch nor NumPy is needed to build or to import. Calls that compute or
// wait release the interpreter lock. A child of fork() has none of the threads: there the object refuses everything and
// is never destroyed. Tensors on a device and the arena for state there are PyTorch's memory as well; its stream
// crosses as the address that it is.
#include "transload/offloaded_adamw.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>
#include <xxhash.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#ifdef TRANSLOAD_HAVE_CUDA
#include "train/cuda/cuda_tensors.h"
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace transload {
namespace {

/// Python's StepFailed; lives as long as the module.
PyObject* step_failed_type = nullptr;

ElementType element_type(int number) {
  if (number < 0 || number > 2) throw InputError("An element type is 0 (fp32), 1 (bf16) or 2 (fp16).");
  return static_cast<ElementType>(number);
}

StatePlane state_plane(int number) {
  if (number < 0 || number > 2) throw InputError("A plane is 0 (moment1), 1 (moment2) or 2 (master).");
  return static_cast<StatePlane>(number);
}

template <typename T>
T* at_address(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

/// (name, elements, element type, key, device) of each tensor.
std::vector<OptimizerTensor> tensors_from(const nb::list& rows) {
  std::vector<OptimizerTensor> tensors;
  tensors.reserve(rows.size());
  for (nb::handle row : rows) {
    tensors.push_back({nb::cast<std::string>(row[0]), nb::cast<std::uint64_t>(row[1]),
                       element_type(nb::cast<int>(row[2])), nb::cast<std::uint64_t>(row[3]), nb::cast<int>(row[4])});
  }
  return tensors;
}

/// Rows (lr, beta1, beta2, eps, weight decay, tensors, weights, gradients, gradient types): the last four are lists of
/// one length, the values before them count for all of the row.
std::vector<TensorStep> steps_from(const nb::list& rows) {
  std::vector<TensorStep> steps;
  for (nb::handle row : rows) {
    TensorStep step;
    step.learning_rate = nb::cast<double>(row[0]);
    step.beta1 = nb::cast<double>(row[1]);
    step.beta2 = nb::cast<double>(row[2]);
    step.epsilon = nb::cast<double>(row[3]);
    step.weight_decay = nb::cast<double>(row[4]);
    const nb::list tensors(row[5]), weights(row[6]), gradients(row[7]), types(row[8]);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      step.tensor = nb::cast<std::size_t>(tensors[i]);
      step.weight = at_address<void>(nb::cast<std::uintptr_t>(weights[i]));
      step.gradient = at_address<const void>(nb::cast<std::uintptr_t>(gradients[i]));
      step.gradient_type = element_type(nb::cast<int>(types[i]));
      steps.push_back(step);
    }
  }
  return steps;
}

nb::dict dict_from(const OptimizerReport& report) {
  nb::dict d;
  d["host_budget"] = report.host_budget;
  d["host_peak"] = report.host_peak;
  d["host_reserved"] = report.host_reserved;
  d["state_bytes"] = report.state_bytes;
  d["nvme_bytes"] = report.nvme_bytes;
  d["nvme_read"] = report.nvme_read;
  d["nvme_written"] = report.nvme_written;
  d["table_bytes"] = report.table_bytes;
  d["steps"] = report.steps;
  d["wait_s"] = report.wait_s;
  d["step_s"] = report.step_s;
  d["hits"] = report.hits;
  d["late"] = report.late;
  d["demand"] = report.demand;
  d["io_path"] = report.io_path;
  d["io_reason"] = report.io_reason;
  d["folder"] = report.folder;
  d["direct"] = report.direct;
  d["device_state_bytes"] = report.device_state_bytes;
  d["device_read"] = report.device_read;
  d["device_written"] = report.device_written;
  d["staging_reason"] = report.staging_reason;
  return d;
}

/// Owner of the optimizer in this process. Calls from several threads take turns: a step that runs in one when the
/// interpreter exits, or a checkpoint that another one takes, ends first.
class Core {
 public:
  Core(const nb::list& tensors, OffloadedAdamWOptions options) : tensors_(tensors_from(tensors)), process_(getpid()) {
    nb::gil_scoped_release unlocked;
    optimizer_ = std::make_unique<OffloadedAdamW>(tensors_, options);
  }
  ~Core() { close(); }
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  void close() {
    if (getpid() != process_) {
      static_cast<void>(optimizer_.release());
      return;
    }
    const Turn turn(mutex_);
    optimizer_.reset();
  }

  void step(const nb::list& rows, int threads, std::uintptr_t stream) {
    const std::vector<TensorStep> steps = steps_from(rows);
    const Turn turn(mutex_);
    OffloadedAdamW& optimizer = get();
    optimizer.step(steps, threads, at_address<void>(stream));
  }

  bool gradients_finite(const nb::list& rows, int threads) {
    const std::vector<TensorStep> steps = steps_from(rows);
    nb::gil_scoped_release unlocked;
    return OffloadedAdamW::gradients_finite(steps, tensors_, threads);
  }

  std::uint64_t step_count(std::size_t tensor) {
    const Turn turn(mutex_);
    return get().step_count(tensor);
  }
  void set_step_count(std::size_t tensor, std::uint64_t steps) {
    const Turn turn(mutex_);
    get().set_step_count(tensor, steps);
  }

  void read(std::size_t tensor, int plane, std::uint64_t first, std::uint64_t count, std::uintptr_t weight,
            std::uintptr_t out) {
    const Turn turn(mutex_);
    OffloadedAdamW& optimizer = get();
    optimizer.read(tensor, state_plane(plane), first, count, at_address<const void>(weight), at_address<float>(out));
  }

  void write(std::size_t tensor, int plane, std::uint64_t first, std::uint64_t count, std::uintptr_t in,
             std::uintptr_t weight) {
    const Turn turn(mutex_);
    OffloadedAdamW& optimizer = get();
    optimizer.write(tensor, state_plane(plane), first, count, at_address<const float>(in), at_address<void>(weight));
  }

  void reset(std::size_t tensor) {
    const Turn turn(mutex_);
    OffloadedAdamW& optimizer = get();
    optimizer.reset(tensor);
  }

  bool reserve(std::uint64_t bytes) {
    const Turn turn(mutex_);
    OffloadedAdamW& optimizer = get();
    return optimizer.reserve(bytes);
  }

  std::uint64_t reservable() {
    const Turn turn(mutex_);
    return get().reservable();
  }
  nb::dict report() {
    OptimizerReport now;
    {
      const Turn turn(mutex_);
      now = get().report();
    }
    return dict_from(now);
  }

 private:
  /// Waits for the other threads' calls without the interpreter lock, which they want when they end.
  class Turn {
   public:
    explicit Turn(std::mutex& mutex) : lock_(mutex) {}

   private:
    nb::gil_scoped_release unlocked_;
    const std::lock_guard<std::mutex> lock_;
  };

  OffloadedAdamW& get() {
    if (!optimizer_) throw std::runtime_error("This optimizer is closed.");
    if (getpid() != process_) throw std::runtime_error("This optimizer belongs to the process that made it.");
    return *optimizer_;
  }

  std::vector<OptimizerTensor> tensors_;
  pid_t process_;
  std::mutex mutex_;
  std::unique_ptr<OffloadedAdamW> optimizer_;
};

OffloadedAdamWOptions options_from(std::uint64_t host_memory, std::string nvme, std::uint64_t chunk_elements,
                                   int moments, std::uint64_t seed, bool io_uring, std::string record,
                                   std::uint64_t device_memory, std::uintptr_t device_arena) {
  OffloadedAdamWOptions options;
  options.host_memory = host_memory;
  options.nvme = std::move(nvme);
  options.chunk_elements = chunk_elements;
  options.moments = element_type(moments);
  options.seed = seed;
  options.io_uring = io_uring;
  options.record = std::move(record);
  options.device_memory = device_memory;
  options.device_arena = at_address<void>(device_arena);
  return options;
}

nb::bytes digest(std::uintptr_t address, std::size_t bytes) {
  XXH128_canonical_t canonical;
  {
    nb::gil_scoped_release unlocked;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(at_address<const void>(address), bytes));
  }
  return nb::bytes(canonical.digest, sizeof canonical.digest);
}

void raise_os_error(int number, const char* text) {
  nb::object error = number == 0 ? nb::handle(PyExc_OSError)(text) : nb::handle(PyExc_OSError)(number, text);
  PyErr_SetObject(PyExc_OSError, error.ptr());
}

void raise_step_failed(const StepFailed& failure) {
  nb::object error = nb::handle(step_failed_type)(failure.what());
  error.attr("updated") = nb::cast(failure.updated);
  PyErr_SetObject(step_failed_type, error.ptr());
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const StepFailed& e) {
    raise_step_failed(e);
  } catch (const InputError& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const BudgetError& e) {
    PyErr_SetString(PyExc_MemoryError, e.what());
  } catch (const IoError& e) {
    raise_os_error(e.details().error, e.what());
  } catch (const DamageError& e) {
    raise_os_error(0, e.what());
  } catch (const Error& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
}

}  // namespace
}  // namespace transload

NB_MODULE(_core, m) {
  using transload::Core;
#ifdef TRANSLOAD_HAVE_CUDA
  transload::cuda::announce_tensors();
#endif
  m.doc() = "The optimizer over tensors that a caller owns; memory crosses as addresses.";
  transload::step_failed_type = PyErr_NewException("transload._core.StepFailed", PyExc_RuntimeError, nullptr);
  m.attr("StepFailed") = nb::handle(transload::step_failed_type);
  nb::register_exception_translator(transload::translate);

  nb::class_<Core>(m, "Core")
      .def(
          "__init__",
          [](Core* self, const nb::list& tensors, std::uint64_t host_memory, std::string nvme,
             std::uint64_t chunk_elements, int moments, std::uint64_t seed, bool io_uring, std::string record,
             std::uint64_t device_memory, std::uintptr_t device_arena) {
            new (self)
                Core(tensors, transload::options_from(host_memory, std::move(nvme), chunk_elements, moments, seed,
                                                      io_uring, std::move(record), device_memory, device_arena));
          },
          "tensors"_a, nb::kw_only(), "host_memory"_a = 0, "nvme"_a = "", "chunk_elements"_a = 0, "moments"_a = 0,
          "seed"_a = 0, "io_uring"_a = true, "record"_a = "", "device_memory"_a = 0, "device_arena"_a = 0)
      .def("close", &Core::close)
      .def("step", &Core::step, "rows"_a, "threads"_a, "stream"_a = 0)
      .def("gradients_finite", &Core::gradients_finite, "rows"_a, "threads"_a)
      .def("step_count", &Core::step_count, "tensor"_a)
      .def("set_step_count", &Core::set_step_count, "tensor"_a, "steps"_a)
      .def("read", &Core::read, "tensor"_a, "plane"_a, "first"_a, "count"_a, "weight"_a, "out"_a)
      .def("write", &Core::write, "tensor"_a, "plane"_a, "first"_a, "count"_a, "values"_a, "weight"_a)
      .def("reset", &Core::reset, "tensor"_a)
      .def("reserve", &Core::reserve, "bytes"_a)
      .def("reservable", &Core::reservable)
      .def("report", &Core::report);
  m.def("digest", &transload::digest, "address"_a, "bytes"_a);
  m.def("cuda_unavailable", &transload::OffloadedAdamW::cuda_unavailable);
  m.def(
      "device_bytes",
      [](const nb::list& tensors, std::uint64_t device_memory, std::uint64_t host_memory, std::string nvme,
         std::uint64_t chunk_elements, int moments) {
        return transload::OffloadedAdamW::device_bytes(
            transload::tensors_from(tensors), transload::options_from(host_memory, std::move(nvme), chunk_elements,
                                                                      moments, 0, true, "", device_memory, 0));
      },
      "tensors"_a, nb::kw_only(), "device_memory"_a, "host_memory"_a = 0, "nvme"_a = "", "chunk_elements"_a = 0,
      "moments"_a = 0);
  m.def("empty_report", [] { return transload::dict_from(transload::OptimizerReport{}); });
}
