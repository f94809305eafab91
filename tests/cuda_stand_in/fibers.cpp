#undef _FORTIFY_SOURCE  // it takes a jump to another stack for damage
#include "fibers.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <unordered_map>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) static_cast<void>(0)
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace stand_in {
namespace {

constexpr std::size_t kStackBytes = 256 << 10;  // untouched pages cost nothing
constexpr std::size_t kSharedBytes = 48 << 10;  // what a block may have without asking for more
constexpr std::size_t kGap = 32;                // between two declarations: the address sanitizer sees what overruns
constexpr unsigned kWarp = 32;
constexpr unsigned kMostThreads = 1024;

Schedule schedule_in_use;
std::atomic<int> skipped_site{-1};
std::mutex sites_mutex;
std::deque<Site>& known_sites() {
  static std::deque<Site> known;
  return known;
}

#if defined(__SANITIZE_THREAD__)
/// A stack and where on it to go on. TSan is told of every change of stacks; it takes no jump to another one.
class Context {
 public:
  static void change(Context& from, Context& to) {
    __tsan_switch_to_fiber(to.fiber, 0);
    swapcontext(&from.at, &to.at);
  }
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  void* fiber = nullptr;  ///< TSan's
  ucontext_t at;
};
#else
/// A stack and where on it to go on. ASan is told of every change of stacks.
class Context {
 public:
  /// Leaves `from` and goes on in `to`; returns when somebody goes on in `from`.
  static void change(Context& from, Context& to) {
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, to.bottom, to.bytes);
#endif
    jump(from, to);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  }
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  jmp_buf at;

 private:
  __attribute__((noinline)) static void jump(Context& from, Context& to) {
    if (_setjmp(from.at) == 0) _longjmp(to.at, 1);
  }
};
#endif

struct Fiber {
  Context context;
  ucontext_t start;
};

enum class State : std::uint8_t { fresh, ready, at_block_barrier, at_warp_barrier, done };

/// One thread of the block that runs.
struct Thread {
  State state = State::fresh;
  Fiber* fiber = nullptr;
  int site = -1;      ///< where it waits; −1: at a shuffle
  unsigned mask = 0;  ///< of the warp operation it waits at
};
/// Values of a warp's shuffles: two sets in turn, so that a lane that is ahead overwrites nothing.
struct Warp {
  std::array<std::array<std::uint64_t, kWarp>, 2> given{};
  std::array<std::uint64_t, kWarp> turns{};  ///< of each lane
};

/// Runs launches of one thread of the host.
class Executor {
 public:
  Executor() = default;
  ~Executor() { release_fibers(); }
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  void run(const Launch& launch, const std::function<void()>& thread);

  void wait(State state, int site, unsigned mask);
  std::uint64_t exchange(unsigned mask, std::uint64_t bits, unsigned from);
  std::byte* shared(const void* key, std::size_t bytes, std::size_t alignment);
  std::byte* dynamic() { return dynamic_; }
  unsigned current() const { return current_; }
  void fiber_main(Fiber* fiber);

 private:
  void run_block();
  void one_pass();
  bool open_barriers();
  bool open_warp_barrier(unsigned warp);
  bool next_fresh();
  void enter(unsigned thread);
  [[noreturn]] void report_stuck();
  [[noreturn]] void fail(const std::string& message);
  void release_fibers();
  void clear_shared();
  void order_threads();
  void set_indices();
  Fiber* free_fiber();
  void create(Fiber& fiber);

  const Launch* launch_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  std::mt19937_64 random_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<unsigned> order_;
  std::size_t cursor_ = 0;  ///< in order_
  unsigned current_ = 0;    ///< the thread that runs
  Context scheduler_;
  std::deque<Fiber> fibers_;
  std::vector<Fiber*> free_;
  std::exception_ptr thrown_;

  alignas(64) std::array<std::byte, kSharedBytes + kGap> shared_;
  std::size_t shared_used_ = 0;
  std::unordered_map<const void*, std::byte*> declared_;
  std::byte* dynamic_ = nullptr;
};

thread_local std::unique_ptr<Executor> executor;
Executor& here() {
  if (executor == nullptr) throw Failure("a device function was called outside a kernel");
  return *executor;
}

#if defined(__SANITIZE_THREAD__)
void trampoline(unsigned high, unsigned low) {
  here().fiber_main(reinterpret_cast<Fiber*>(std::uintptr_t{high} << 32 | low));
}

void start(Fiber& fiber) {
  ucontext_t& at = fiber.context.at;
  getcontext(&at);
  at.uc_stack.ss_sp = const_cast<void*>(fiber.context.bottom);
  at.uc_stack.ss_size = fiber.context.bytes;
  at.uc_link = nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(&fiber);
  makecontext(&at, reinterpret_cast<void (*)()>(trampoline), 2, static_cast<unsigned>(address >> 32),
              static_cast<unsigned>(address));
  fiber.context.fiber = __tsan_create_fiber(0);
}
#else
thread_local Fiber* starting_fiber = nullptr;

// The first jump to a fiber lands here; the one before only came to leave the mark.
void trampoline() {
  Fiber* const fiber = starting_fiber;
  if (_setjmp(fiber->context.at) == 0) {
    ucontext_t* const back = fiber->start.uc_link;
    setcontext(back);
  }
  here().fiber_main(fiber);
}

void start(Fiber& fiber) {
  ucontext_t back;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = const_cast<void*>(fiber.context.bottom);
  fiber.start.uc_stack.ss_size = fiber.context.bytes;
  fiber.start.uc_link = &back;
  makecontext(&fiber.start, trampoline, 0);
  starting_fiber = &fiber;
  swapcontext(&back, &fiber.start);
}
#endif

void Executor::create(Fiber& fiber) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* memory =
      mmap(nullptr, kStackBytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) throw Failure("no memory for a fiber's stack");
  fiber.context.bottom = static_cast<std::byte*>(memory) + page;
  fiber.context.bytes = kStackBytes;
  start(fiber);
}

Fiber* Executor::free_fiber() {
  if (free_.empty()) {
    create(fibers_.emplace_back());
    free_.push_back(&fibers_.back());
  }
  Fiber* const fiber = free_.back();
  free_.pop_back();
  return fiber;
}

// A fiber that ended its thread takes the next one that has not begun, without a change of stacks.
void Executor::fiber_main(Fiber* fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_.bottom, &scheduler_.bytes);
#endif
  for (;;) {
    do {
      threads_[current_].fiber = fiber;
      set_indices();
      try {
        (*body_)();
      } catch (...) {
        thrown_ = std::current_exception();
      }
      threads_[current_].state = State::done;
    } while (thrown_ == nullptr && next_fresh());
    free_.push_back(fiber);
    Context::change(fiber->context, scheduler_);
  }
}

bool Executor::next_fresh() {
  std::size_t next = cursor_ + 1;
  while (next < order_.size() && threads_[order_[next]].state != State::fresh &&
         threads_[order_[next]].state != State::ready)
    ++next;
  if (next == order_.size() || threads_[order_[next]].state != State::fresh) return false;
  cursor_ = next;
  current_ = order_[next];
  return true;
}

void Executor::set_indices() {
  const dim3& block = launch_->block;
  threadIdx = {current_ % block.x, current_ / block.x % block.y, current_ / block.x / block.y};
}

void Executor::enter(unsigned thread) {
  current_ = thread;
  Thread& t = threads_[thread];
  Fiber* const fiber = t.state == State::fresh ? free_fiber() : t.fiber;
  set_indices();
  t.state = State::ready;
  Context::change(scheduler_, fiber->context);
}

void Executor::wait(State state, int site, unsigned mask) {
  const unsigned self = current_;
  Thread& t = threads_[self];
  t.state = state;
  t.site = site;
  t.mask = mask;
  Context::change(t.fiber->context, scheduler_);
}

std::uint64_t Executor::exchange(unsigned mask, std::uint64_t bits, unsigned from) {
  const unsigned in_warp = current_ % kWarp;
  Warp& warp = warps_[current_ / kWarp];
  const std::uint64_t turn = warp.turns[in_warp]++;
  warp.given[turn % 2][in_warp] = bits;
  wait(State::at_warp_barrier, -1, mask);
  if ((mask >> from & 1) == 0) throw Failure(std::string(launch_->kernel) + ": a shuffle from a lane outside its mask");
  return warp.given[turn % 2][from];
}

std::byte* Executor::shared(const void* key, std::size_t bytes, std::size_t alignment) {
  const auto known = declared_.find(key);
  if (known != declared_.end()) return known->second;
  const std::size_t at = (shared_used_ + alignment - 1) / alignment * alignment;
  if (at + bytes > kSharedBytes) throw Failure(std::string(launch_->kernel) + ": more than 48 KiB of shared memory");
  std::byte* const memory = shared_.data() + at;
  ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
  std::memset(memory, 0xCB, bytes);
  shared_used_ = at + bytes + kGap;
  declared_.emplace(key, memory);
  return memory;
}

void Executor::clear_shared() {
  declared_.clear();
  shared_used_ = 0;
  ASAN_POISON_MEMORY_REGION(shared_.data(), shared_.size());
  dynamic_ = launch_->shared_bytes == 0 ? nullptr : shared(&dynamic_, launch_->shared_bytes, 16);
}

void Executor::order_threads() {
  if (schedule_in_use.order == Order::random) std::shuffle(order_.begin(), order_.end(), random_);
}

// Every thread that can run does, once.
void Executor::one_pass() {
  order_threads();
  for (cursor_ = 0; cursor_ < order_.size(); ++cursor_) {
    const State state = threads_[order_[cursor_]].state;
    if (state == State::fresh || state == State::ready) enter(order_[cursor_]);
    if (thrown_ != nullptr) return;
  }
}

bool Executor::open_warp_barrier(unsigned warp) {
  const unsigned first = warp * kWarp;
  bool opened = false;
  for (unsigned i = first; i < std::min<std::size_t>(first + kWarp, threads_.size()); ++i) {
    Thread& t = threads_[i];
    if (t.state != State::at_warp_barrier) continue;
    const unsigned mask = t.mask;
    const int site = t.site;
    bool all = true;
    for (unsigned l = 0; l < kWarp && all; ++l) {
      if ((mask >> l & 1) == 0) continue;
      all = first + l < threads_.size() && threads_[first + l].state == State::at_warp_barrier &&
            threads_[first + l].mask == mask && threads_[first + l].site == site;
    }
    if (!all) continue;
    for (unsigned l = 0; l < kWarp; ++l) {
      if ((mask >> l & 1) != 0) threads_[first + l].state = State::ready;
    }
    opened = true;
  }
  return opened;
}

bool Executor::open_barriers() {
  bool opened = false;
  for (unsigned w = 0; w < warps_.size(); ++w) opened = open_warp_barrier(w) || opened;
  const int site = threads_[0].site;
  const bool whole_block = std::all_of(threads_.begin(), threads_.end(), [&](const Thread& t) {
    return t.state == State::at_block_barrier && t.site == site;
  });
  if (whole_block) {
    for (Thread& t : threads_) t.state = State::ready;
  }
  return opened || whole_block;
}

void Executor::report_stuck() {
  std::string text = "threads of block (" + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) + ") ";
  std::string place = "a shuffle";
  unsigned waiting = 0, ended = 0;
  for (const Thread& t : threads_) {
    if (t.state == State::done) ++ended;
    if (t.state != State::at_block_barrier && t.state != State::at_warp_barrier) continue;
    ++waiting;
    if (t.site < 0) continue;
    const Site site = sites()[static_cast<std::size_t>(t.site)];
    place = "the barrier at " + site.file + ":" + std::to_string(site.line);
  }
  fail(text + std::to_string(waiting) + " wait, some at " + place + ", " + std::to_string(ended) +
       " ended: not all reach it");
}

// Fibers that were left in the middle go, too: nothing on their stacks has a destructor.
void Executor::release_fibers() {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (Fiber& fiber : fibers_) {
    auto* const bottom = static_cast<std::byte*>(const_cast<void*>(fiber.context.bottom));
    ASAN_UNPOISON_MEMORY_REGION(bottom, fiber.context.bytes);
    munmap(bottom - page, fiber.context.bytes + page);
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(fiber.context.fiber);
#endif
  }
  fibers_.clear();
  free_.clear();
}

void Executor::fail(const std::string& message) {
  release_fibers();
  throw Failure(std::string(launch_->kernel) + ": " + message);
}

void Executor::run_block() {
  for (Thread& t : threads_) t = Thread();
  for (Warp& w : warps_) w = Warp();
  clear_shared();
  for (;;) {
    one_pass();
    if (thrown_ != nullptr) {
      std::string what = "an unknown exception";
      try {
        std::rethrow_exception(std::exchange(thrown_, nullptr));
      } catch (const std::exception& e) {
        what = e.what();
      } catch (...) {
      }
      fail(what);
    }
    if (std::all_of(threads_.begin(), threads_.end(), [](const Thread& t) { return t.state == State::done; })) return;
    if (!open_barriers()) report_stuck();
  }
}

void Executor::run(const Launch& launch, const std::function<void()>& thread) {
  launch_ = &launch;
  body_ = &thread;
#if defined(__SANITIZE_THREAD__)
  scheduler_.fiber = __tsan_get_current_fiber();
#endif
  const std::size_t count = std::size_t{launch.block.x} * launch.block.y * launch.block.z;
  if (count == 0 || count > kMostThreads || launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0 ||
      launch.grid.y > 65535 || launch.grid.z > 65535) {
    fail("a launch that CUDA would refuse");
  }
  threads_.resize(count);
  warps_.resize((count + kWarp - 1) / kWarp);
  order_.resize(count);
  std::iota(order_.begin(), order_.end(), 0u);
  if (schedule_in_use.order == Order::reversed) std::reverse(order_.begin(), order_.end());
  random_.seed(schedule_in_use.seed);
  blockDim = launch.block;
  gridDim = launch.grid;
  for (unsigned z = 0; z < launch.grid.z; ++z) {
    for (unsigned y = 0; y < launch.grid.y; ++y) {
      for (unsigned x = 0; x < launch.grid.x; ++x) {
        blockIdx = {x, y, z};
        run_block();
      }
    }
  }
}

}  // namespace

void set_schedule(Schedule schedule) { schedule_in_use = schedule; }

void launch_fibers(const Launch& launch, const std::function<void()>& thread) {
  if (executor == nullptr) executor = std::make_unique<Executor>();
  executor->run(launch, thread);
}

std::vector<Site> sites() {
  const std::lock_guard lock(sites_mutex);
  return {known_sites().begin(), known_sites().end()};
}
void skip_site(int site) { skipped_site = site; }

int site_number(const char* file, int line) {
  const std::lock_guard lock(sites_mutex);
  auto& known = known_sites();
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (known[i].line == line && known[i].file == file) return static_cast<int>(i);
  }
  known.push_back({file, line});
  return static_cast<int>(known.size() - 1);
}

void sync_threads(int site) {
  if (site == skipped_site) return;
  here().wait(State::at_block_barrier, site, 0);
}
void sync_warp(int site, unsigned mask) {
  if (site == skipped_site) return;
  here().wait(State::at_warp_barrier, site, mask);
}
unsigned lane() { return here().current() % kWarp; }
std::uint64_t exchange_bits(unsigned mask, std::uint64_t bits, unsigned from) {
  return here().exchange(mask, bits, from);
}
std::byte* shared_bytes(const void* key, std::size_t bytes, std::size_t alignment) {
  return here().shared(key, bytes, alignment);
}
std::byte* dynamic_shared() { return here().dynamic(); }

}  // namespace stand_in
