// Tiles by oneDNN, one-threaded: the library would change its bits with the number of threads, and its thread pool
// would fight ours. A primitive is created once for a form and shared; each thread keeps the memory objects that it
// runs the primitive with, and one scratchpad.
#ifdef TRANSLOAD_HAVE_ONEDNN

#include <fmt/format.h>
#include <omp.h>
#include <pthread.h>

#include <atomic>
#include <csignal>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "kernels/cpu/tile.h"

namespace transload::kernels {
namespace {

constexpr std::size_t kMostForms = 1024;  // a cache that is full starts anew

struct FormHash {
  std::size_t operator()(const TileForm& f) const {
    std::uint64_t h = static_cast<std::uint64_t>(f.operands);
    h = h * 2 + f.a_transposed;
    h = h * 2 + f.b_transposed;
    h = h * 2 + f.accumulate;
    for (const std::int64_t v : {f.m, f.n, f.k, f.lda, f.ldb, f.ldc}) {
      h = (h ^ static_cast<std::uint64_t>(v)) * 0x9E3779B97F4A7C15u;
      h ^= h >> 29;
    }
    return h;
  }
};

/// OpenMP with one thread for the calling thread, while it lives.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

/// No signal handler runs on this thread while it lives. oneDNN's generated kernels keep data below the stack pointer,
/// beyond what the ABI protects: a handler's frame there destroys them (measured: an interval timer crashes 2.6.3
/// within a second). Two short system calls a tile, beside the tile's product they do not show.
class NoSignals {
 public:
  NoSignals() { pthread_sigmask(SIG_BLOCK, &asynchronous(), &before_); }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  static const sigset_t& asynchronous() {
    static const sigset_t set = [] {
      sigset_t s;
      sigfillset(&s);
      for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&s, fault);
      return s;
    }();
    return set;
  }
  sigset_t before_;
};

const dnnl::engine& engine() {
  static const auto* const cpu = new dnnl::engine(dnnl::engine::kind::cpu, 0);  // outlives every thread
  return *cpu;
}

std::atomic<std::uint64_t> primitives_created{0};

struct Primitive {
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul run;
};

Primitive create(const TileForm& f) {
  const auto type = f.operands == Dtype::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  using Dims = dnnl::memory::dims;
  const dnnl::memory::desc a({f.m, f.k}, type, f.a_transposed ? Dims{1, f.lda} : Dims{f.lda, 1});
  const dnnl::memory::desc b({f.k, f.n}, type, f.b_transposed ? Dims{1, f.ldb} : Dims{f.ldb, 1});
  const dnnl::memory::desc c({f.m, f.n}, dnnl::memory::data_type::f32, Dims{f.ldc, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (f.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  Primitive p;
  p.desc = dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attributes, engine());
  p.run = dnnl::matmul(p.desc);
  primitives_created.fetch_add(1, std::memory_order_relaxed);
  return p;
}

/// The primitive of a form, created by whoever asks first.
Primitive shared_primitive(const TileForm& form) {
  static std::mutex mutex;
  static auto* const primitives = new std::unordered_map<TileForm, Primitive, FormHash>;  // outlives every thread
  const std::lock_guard lock(mutex);
  const auto found = primitives->find(form);
  if (found != primitives->end()) return found->second;
  if (primitives->size() >= kMostForms) primitives->clear();
  return primitives->emplace(form, create(form)).first->second;
}

/// A primitive with the memory objects of one thread.
struct Bound {
  explicit Bound(const Primitive& p)
      : primitive(p.run),
        a(p.desc.src_desc(), engine(), nullptr),
        b(p.desc.weights_desc(), engine(), nullptr),
        c(p.desc.dst_desc(), engine(), nullptr),
        scratchpad(p.desc.scratchpad_desc(), engine(), nullptr),
        scratchpad_floats(static_cast<std::int64_t>((p.desc.scratchpad_desc().get_size() + 3) / 4)),
        arguments{{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}, {DNNL_ARG_SCRATCHPAD, scratchpad}} {}
  dnnl::matmul primitive;
  dnnl::memory a, b, c, scratchpad;
  std::int64_t scratchpad_floats;
  std::unordered_map<int, dnnl::memory> arguments;
};

Bound& bound_primitive(const TileForm& form) {
  thread_local std::unordered_map<TileForm, Bound, FormHash> bound;
  const auto found = bound.find(form);
  if (found != bound.end()) return found->second;
  if (bound.size() >= kMostForms) bound.clear();
  return bound.emplace(form, shared_primitive(form)).first->second;
}

}  // namespace

void tile_product(const TileForm& form, const void* a, const void* b, float* c) {
  const OneThread one_thread;
  thread_local dnnl::stream stream(engine());
  Bound& bound = bound_primitive(form);
  bound.a.set_data_handle(const_cast<void*>(a));
  bound.b.set_data_handle(const_cast<void*>(b));
  bound.c.set_data_handle(c);
  bound.scratchpad.set_data_handle(thread_buffer(0, bound.scratchpad_floats));
  const NoSignals no_signals;
  bound.primitive.execute(stream, bound.arguments);
}

bool bf16_products_are_native() {
  const auto have = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto want = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (have & want) == want;
}

std::string tile_library() {
  const dnnl_version_t* v = dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", v->major, v->minor, v->patch);
}

std::uint64_t tile_primitives_created() { return primitives_created.load(std::memory_order_relaxed); }

}  // namespace transload::kernels
#endif
