// Store reads, writes and both at once, checksums included, against a bare loop of direct I/O on the same disk, memory
// and amount, interleaved: a round measures all six, and what counts is the median of the rounds' ratios.
//
//   bench_store [--folder DIR] [--total 1GiB] [--block 16MiB] [--frame 256KiB] [--rounds 9] [--io auto|uring|threads]
//
// The limit: threads that call pread and pwrite with O_DIRECT, 2 MiB at a time and 8 in flight a direction, on
// contiguous huge-page memory and a file that was written before; nothing is hashed, nothing is looked up. fio, where
// it is installed, stands beside it once (its buffers are in small pages).
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/os.h"
#include "base/size.h"
#include "offload/store.h"

namespace transload {
namespace {

struct Settings {
  std::string folder = std::filesystem::temp_directory_path().string();
  std::uint64_t total = GiB, block = 16 * MiB, frame = 256 * KiB;
  int rounds = 9;
  IoPath io = IoPath::automatic;
};

enum class What { read, write, duplex };

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The limit: as little as a program can do to move bytes.
class BareLoop {
 public:
  static constexpr std::uint64_t kRequest = 2 * MiB;
  static constexpr int kInFlight = 8;

  BareLoop(const Settings& settings, std::span<std::byte> memory) : total_(settings.total), memory_(memory) {
    const std::string path = settings.folder + "/bare";
    { const os::File made = os::File::open_or_throw(path, O_RDWR | O_CREAT); }
    file_ = os::File::open_or_throw(path, O_RDWR | O_DIRECT);
    os::remove(path);
    if (file_.allocate(2 * total_) < 0) throw Error("The bench needs twice --total of free space beside the store.");
    move(true, 0);
    move(true, total_);
  }

  void run(What what) {
    std::vector<std::thread> directions;
    if (what != What::write) directions.emplace_back([this] { move(false, 0); });
    if (what != What::read) directions.emplace_back([this] { move(true, total_); });
    for (std::thread& direction : directions) direction.join();
  }

 private:
  void move(bool write, std::uint64_t begin) {
    std::atomic<std::uint64_t> next{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kInFlight; ++i) {
      threads.emplace_back([&] {
        for (std::uint64_t at = next.fetch_add(kRequest); at < total_; at = next.fetch_add(kRequest)) {
          std::byte* data = memory_.data() + at % memory_.size();
          if (write) file_.write_or_throw(data, kRequest, begin + at);
          if (!write) file_.read_or_throw(data, kRequest, begin + at);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  const std::uint64_t total_;
  const std::span<std::byte> memory_;
  os::File file_;
};

/// Counts blocks down.
class Latch final : public Completion {
 public:
  void done(const IoResult& result) noexcept override {
    std::lock_guard lock(mutex_);
    if (result.error != nullptr) error_ = result.error;
    if (--left_ == 0) changed_.notify_all();
  }
  void expect(std::size_t n) { left_ = n; }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return left_ == 0; });
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t left_ = 0;
  std::exception_ptr error_;
};

/// The store as an engine uses it: blocks in frames that are mostly not neighbours.
class StoreLoop {
 public:
  StoreLoop(const Settings& settings, std::span<std::byte> memory) {
    const std::size_t blocks = settings.total / settings.block, places = memory.size() / settings.block;
    StoreOptions options;
    options.folder = settings.folder + "/store";
    options.io = settings.io;
    store_ = Store::create(options, {{settings.block, 2 * blocks}}, {});
    std::vector<std::size_t> frames(memory.size() / settings.frame);
    std::iota(frames.begin(), frames.end(), 0u);
    std::shuffle(frames.begin(), frames.end(), std::mt19937_64(1));
    const std::size_t each = settings.block / settings.frame;
    for (std::size_t p = 0; p < places; ++p) {
      std::vector<IoSlice>& slices = slices_.emplace_back();
      for (std::size_t f = 0; f < each; ++f) {
        slices.push_back({memory.data() + frames[p * each + f] * settings.frame, settings.frame});
      }
    }
    for (std::size_t b = 0; b < blocks; ++b) read_from_.push_back(store_->allocate(settings.block));
    for (std::size_t b = 0; b < blocks; ++b) write_to_.push_back(store_->allocate(settings.block));
    fill(settings.block);
  }

  void run(What what) {
    const std::size_t blocks = read_from_.size();
    reads_.expect(blocks);
    writes_.expect(blocks);
    for (std::size_t b = 0; b < blocks; ++b) {
      const std::vector<IoSlice>& slices = slices_[b % slices_.size()];
      if (what != What::write) store_->submit_read(read_from_[b], slices, checksum_, "block", &reads_);
      if (what != What::read) store_->submit_write(write_to_[b], slices, "block", &writes_);
    }
    if (what != What::write) reads_.wait();
    if (what != What::read) writes_.wait();
  }

  Store::Facts facts() const { return store_->facts(); }

 private:
  /// All blocks have the same content, so that reading into memory that is being written from changes nothing.
  void fill(std::uint64_t block) {
    for (const std::vector<IoSlice>& slices : slices_) {
      std::mt19937_64 random(7);
      for (const IoSlice& slice : slices) {
        for (std::uint64_t at = 0; at < slice.bytes; at += 8) {
          const std::uint64_t word = random();
          std::copy_n(reinterpret_cast<const std::byte*>(&word), 8, slice.data + at);
        }
      }
    }
    struct One final : Completion {
      void done(const IoResult& result) noexcept override {
        checksum = result.checksum;
        latch.done(result);
      }
      std::uint64_t checksum = 0;
      Latch latch;
    } one;
    for (std::size_t b = 0; b < read_from_.size(); ++b) {
      one.latch.expect(1);
      store_->submit_write(read_from_[b], slices_[b % slices_.size()], "block", &one);
      one.latch.wait();
    }
    checksum_ = one.checksum;
  }

  std::unique_ptr<Store> store_;
  std::vector<std::vector<IoSlice>> slices_;
  std::vector<SlotId> read_from_, write_to_;
  std::uint64_t checksum_ = 0;
  Latch reads_, writes_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

void run_fio(const Settings& settings, const char* direction) {
  const std::string command = fmt::format(
      "fio --name=fio --filename='{}/fio' --size={} --rw={} --bs=2M --iodepth=8 --ioengine=libaio --direct=1 "
      "--overwrite=1 --output-format=terse --terse-version=3 2>/dev/null; rm -f '{}/fio'",
      settings.folder, settings.total, direction, settings.folder);
  std::string output;
  if (FILE* pipe = ::popen(command.c_str(), "r")) {
    std::array<char, 4096> buffer;
    while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) output += buffer.data();
    ::pclose(pipe);
  }
  std::vector<std::string> fields(1);
  for (const char c : output) {
    if (c == ';') {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  // Terse version 3: KiB/s of reads is field 7, of writes field 48, counted from 1.
  const std::size_t field = std::string(direction) == "read" ? 6 : 47;
  if (fields.size() <= field) return;
  fmt::print("fio {}: {}\n", direction, format_rate(std::strtod(fields[field].c_str(), nullptr) * 1024));
}

void run(const Settings& settings) {
  const os::Memory memory(std::min<std::uint64_t>(settings.total, 256 * MiB) / settings.block * settings.block, true);
  const std::span<std::byte> bytes(memory.data(), memory.bytes());
  StoreLoop store(settings, bytes);
  BareLoop bare(settings, bytes);
  const Store::Facts facts = store.facts();
  fmt::print("store in {} ({}): {}, {} I/O, blocks of {} in frames of {}, {} a measurement\n", settings.folder,
             facts.file_system, facts.io_path, facts.direct ? "direct" : "buffered", format_size(settings.block),
             format_size(settings.frame), format_size(settings.total));

  constexpr std::array<What, 3> kWhats = {What::read, What::write, What::duplex};
  constexpr std::array<const char*, 3> kNames = {"read", "write", "duplex"};
  std::array<std::vector<double>, 3> bare_rates, store_rates, ratios;
  for (int round = 0; round < settings.rounds; ++round) {
    for (std::size_t w = 0; w < kWhats.size(); ++w) {
      const double moved = static_cast<double>(settings.total) * (kWhats[w] == What::duplex ? 2 : 1);
      std::array<double, 2> seconds{};
      // Who goes first alternates: neither always finds the disk as the other left it.
      for (int turn = 0; turn < 2; ++turn) {
        const bool is_store = (turn + round) % 2 == 0;
        seconds[is_store ? 1 : 0] = seconds_of([&] { is_store ? store.run(kWhats[w]) : bare.run(kWhats[w]); });
      }
      bare_rates[w].push_back(moved / seconds[0]);
      store_rates[w].push_back(moved / seconds[1]);
      ratios[w].push_back(seconds[0] / seconds[1]);
    }
  }
  fmt::print("{:8} {:>12} {:>12} {:>8} {:>16}\n", "", "bare (limit)", "store", "ratio", "range");
  for (std::size_t w = 0; w < kWhats.size(); ++w) {
    const auto [low, high] = std::minmax_element(ratios[w].begin(), ratios[w].end());
    fmt::print("{:8} {:>12} {:>12} {:>8.3f} {:>8.3f}-{:.3f}  {}\n", kNames[w], format_rate(median(bare_rates[w])),
               format_rate(median(store_rates[w])), median(ratios[w]), *low, *high,
               median(ratios[w]) >= 0.92 ? "reaches 0.92" : "below 0.92");
  }
  run_fio(settings, "read");
  run_fio(settings, "write");
}

}  // namespace
}  // namespace transload

int main(int argc, char** argv) {
  using namespace transload;
  Settings settings;
  std::string parent = settings.folder, total = "1GiB", block = "16MiB", frame = "256KiB", io = "auto";
  CLI::App app("Store bandwidth against a bare direct-I/O loop");
  app.add_option("--folder", parent, "on the disk to measure")->capture_default_str();
  app.add_option("--total", total, "bytes a direction and measurement")->capture_default_str();
  app.add_option("--block", block, "bytes of a block")->capture_default_str();
  app.add_option("--frame", frame, "bytes of a frame of memory")->capture_default_str();
  app.add_option("--rounds", settings.rounds)->capture_default_str();
  app.add_option("--io", io)->check(CLI::IsMember({"auto", "uring", "threads"}))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    settings.block = parse_size(block, "--block");
    settings.frame = parse_size(frame, "--frame");
    settings.total = parse_size(total, "--total");
    settings.io = io == "uring" ? IoPath::uring : io == "threads" ? IoPath::threads : IoPath::automatic;
    if (settings.frame == 0 || settings.frame % 4096 != 0 || settings.block % (2 * MiB) != 0 || settings.block == 0 ||
        settings.block % settings.frame != 0 || settings.total % settings.block != 0 || settings.total == 0 ||
        settings.block > 256 * MiB) {
      throw InputError("--total is a multiple of --block, which is one of --frame and of 2 MiB, at most 256 MiB.");
    }
    settings.folder = parent + fmt::format("/transload-bench-{}", ::getpid());
    if (os::make_folders(settings.folder) < 0) throw InputError(parent + " cannot be written to.");
    run(settings);
    std::filesystem::remove_all(settings.folder);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_store: {}\n", error.what());
    std::error_code ignored;
    std::filesystem::remove_all(settings.folder, ignored);
    return 1;
  }
}
