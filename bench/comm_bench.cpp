// Collectives on chunks: GB/s of gathered and of summed bytes a rank, by transport, beside the limit of copying the
// same bytes in memory, all ranks at once, measured in the same round. Rounds are interleaved; the median is given.
//   bench_comm [RANKS] [CHUNK_MIB]            forks the ranks: shared memory and TCP
//   mpirun -n 2 bench_comm RANKS [CHUNK_MIB]  one of the ranks that mpirun started: MPI
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/os.h"
#include "base/size.h"
#include "comm/launch.h"
#include "comm/star.h"

using namespace transload;

namespace {

constexpr int kRounds = 15;

template <class Fn>
double seconds_of(Communicator& c, Fn&& fn) {
  c.barrier();
  const auto begin = std::chrono::steady_clock::now();
  fn();
  c.barrier();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure(Communicator& c, std::uint64_t chunk_bytes) {
  InlineStream stream;
  const auto size = static_cast<std::uint64_t>(c.size());
  const std::uint64_t shard = chunk_bytes / size / 256 * 256, whole = shard * size;
  const os::Memory small(shard, true), large(whole, true), other(whole, true);
  const BlockView shard_view(small.data(), shard), whole_view(large.data(), whole);
  std::vector<double> copy, gather, sum;
  for (int round = 0; round < kRounds; ++round) {
    copy.push_back(seconds_of(c, [&] { std::memcpy(other.data(), large.data(), whole); }));
    gather.push_back(seconds_of(c, [&] { c.all_gather(shard_view, whole_view, stream); }));
    sum.push_back(seconds_of(c, [&] { c.reduce_scatter(whole_view, shard_view, Dtype::bf16, stream); }));
  }
  if (c.rank() != 0) return;
  const double limit = median(copy);
  std::printf("%-14s %d ranks, %s a chunk: copy %s, gather %s (%.2f of it), sum of bf16 %s (%.2f)\n", c.transport(),
              c.size(), format_size(whole).c_str(), format_rate(static_cast<double>(whole) / limit).c_str(),
              format_rate(static_cast<double>(whole) / median(gather)).c_str(), limit / median(gather),
              format_rate(static_cast<double>(whole) / median(sum)).c_str(), limit / median(sum));
  std::fflush(stdout);
}

void be_rank(const Launch& launch, bool shared_memory, std::uint64_t chunk_bytes) {
  CommOptions options;
  options.largest_bytes = chunk_bytes;
  options.shared_memory = shared_memory;
  measure(*make_communicator(launch, options), chunk_bytes);
}

void fork_ranks(int size, bool shared_memory, std::uint64_t chunk_bytes) {
  Launch launch;
  launch.launcher = Launcher::torchrun;
  launch.place.size = size;
  launch.host = "127.0.0.1";
  launch.port = port_of(listen_on(0, true));
  for (int rank = 0; rank < size; ++rank)
    if (::fork() == 0) {
      launch.place.rank = rank;
      be_rank(launch, shared_memory, chunk_bytes);
      std::_Exit(0);
    }
  while (::wait(nullptr) > 0) {
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::uint64_t chunk_bytes = (argc > 2 ? static_cast<std::uint64_t>(std::atoll(argv[2])) : 64) * MiB;
  const Launch launch = detect_launch();
  if (launch.launcher == Launcher::mpi) {
    be_rank(launch, false, chunk_bytes);
    return 0;
  }
  fork_ranks(size, true, chunk_bytes);
#ifdef TRANSLOAD_HAVE_GLOO
  fork_ranks(size, false, chunk_bytes);
#endif
}
