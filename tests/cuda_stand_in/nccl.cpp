// NCCL between threads: a group is one piece of work of its stream, which hands over what it sends, takes what it
// receives and waits until what it sent was taken. So a rank that comes late holds the others' streams up, and one that
// never comes holds them for ever, until the communicator is aborted. Sizes that differ between sender and receiver are
// the device's end. The library's sums go down from the last rank: an order that nobody should rely on.
#include "nccl.h"

#include <atomic>
#include <bit>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime.h"

namespace {

struct Parcel {
  const void* data;
  std::size_t bytes;
  bool* taken;
};

/// What the ranks of one id share.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<Parcel>> under_way;  ///< by sender and receiver
  int came = 0;
};

std::mutex worlds_mutex;
std::map<std::string, std::shared_ptr<World>> worlds;

enum class Verb { send, receive };
struct Operation {
  Verb verb;
  void* data;
  std::size_t bytes;
  int peer;
};

std::size_t width_of(ncclDataType_t type) { return type == ncclFloat32 ? 4 : type == ncclBfloat16 ? 2 : 1; }

}  // namespace

struct ncclComm {
  std::shared_ptr<World> world;
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  int rank = 0, ranks = 1;
};

namespace {

/// The group that this thread has open.
struct Group {
  int depth = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Operation> operations;
};
thread_local Group group;

struct Work {
  std::shared_ptr<World> world;
  std::shared_ptr<std::atomic<bool>> aborted;
  int rank;
  std::vector<Operation> operations;

  void run() {
    std::unique_lock lock(world->mutex);
    std::vector<std::unique_ptr<bool>> taken;
    for (const Operation& o : operations)
      if (o.verb == Verb::send) {
        taken.push_back(std::make_unique<bool>(false));
        world->under_way[{rank, o.peer}].push_back({o.data, o.bytes, taken.back().get()});
      }
    world->changed.notify_all();
    for (const Operation& o : operations)
      if (o.verb == Verb::receive && !receive(o, lock)) return abandon();
    for (const auto& one : taken)
      if (!wait(lock, [&] { return *one; })) return abandon();
  }
  template <class Done>
  bool wait(std::unique_lock<std::mutex>& lock, Done&& done) {
    world->changed.wait(lock, [&] { return done() || *aborted; });
    return done();
  }
  bool receive(const Operation& o, std::unique_lock<std::mutex>& lock) {
    auto& queue = world->under_way[{o.peer, rank}];
    if (!wait(lock, [&] { return !queue.empty(); })) return false;
    const Parcel parcel = queue.front();
    queue.pop_front();
    if (parcel.bytes != o.bytes) throw std::runtime_error("NCCL: sender and receiver differ in size");
    std::memcpy(o.data, parcel.data, o.bytes);
    *parcel.taken = true;
    world->changed.notify_all();
    return true;
  }
  /// What this rank sent must not be looked at any more.
  void abandon() {
    for (auto& [way, queue] : world->under_way)
      if (way.first == rank) queue.clear();
  }
};

ncclResult_t enqueue(ncclComm_t comm, cudaStream_t stream, std::vector<Operation> operations,
                     std::function<void()> then) {
  if (*comm->aborted) return ncclInvalidUsage;
  auto work = std::make_shared<Work>(Work{comm->world, comm->aborted, comm->rank, std::move(operations)});
  const cudaError_t error = stand_in::enqueue(stream, "nccl", [work, then = std::move(then)] {
    work->run();
    if (then) then();
  });
  return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t add(Operation operation, ncclComm_t comm, cudaStream_t stream) {
  if (operation.peer < 0 || operation.peer >= comm->ranks) return ncclInvalidArgument;
  if (stand_in::count_call(operation.verb == Verb::send ? "ncclSend" : "ncclRecv") != cudaSuccess)
    return ncclSystemError;
  if (group.depth == 0) return enqueue(comm, stream, {operation}, {});
  group.comm = comm;
  group.stream = stream;
  group.operations.push_back(operation);
  return ncclSuccess;
}

float widened(const std::byte* at, ncclDataType_t type) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, at, width_of(type));
  return std::bit_cast<float>(type == ncclBfloat16 ? bits << 16 : bits);
}
void put(float v, std::byte* at, ncclDataType_t type) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
  if (type == ncclBfloat16) bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  std::memcpy(at, &bits, width_of(type));
}

}  // namespace

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> next{0};
  *id = {};
  const std::string name = "stand-in " + std::to_string(++next);
  name.copy(id->internal, sizeof(id->internal) - 1);
  return stand_in::count_call("ncclGetUniqueId") == cudaSuccess ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  if (stand_in::count_call("ncclCommInitRank") != cudaSuccess) return ncclSystemError;
  std::shared_ptr<World> world;
  {
    const std::lock_guard lock(worlds_mutex);
    auto& found = worlds[id.internal];
    if (!found) found = std::make_shared<World>();
    world = found;
  }
  std::unique_lock lock(world->mutex);
  if (++world->came == ranks) {
    const std::lock_guard worlds_lock(worlds_mutex);
    worlds.erase(id.internal);
  }
  world->changed.notify_all();
  world->changed.wait(lock, [&] { return world->came == ranks; });
  *comm = new ncclComm{world, std::make_shared<std::atomic<bool>>(false), rank, ranks};
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::lock_guard lock(comm->world->mutex);
    *comm->aborted = true;
    comm->world->changed.notify_all();
  }
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = stand_in::count_call("ncclCommGetAsyncError") == cudaSuccess ? ncclSuccess : ncclRemoteError;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote error" : "stand-in's error";
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--group.depth > 0 || group.operations.empty()) return ncclSuccess;
  return enqueue(group.comm, group.stream, std::exchange(group.operations, {}), {});
}

ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add({Verb::send, const_cast<void*>(data), count * width_of(type), peer}, comm, stream);
}

ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add({Verb::receive, data, count * width_of(type), peer}, comm, stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  if (stand_in::count_call("ncclAllGather") != cudaSuccess) return ncclSystemError;
  const std::size_t bytes = count * width_of(type);
  std::vector<Operation> operations;
  for (int r = 0; r < comm->ranks; ++r) {
    operations.push_back({Verb::send, const_cast<void*>(from), bytes, r});
    operations.push_back({Verb::receive, static_cast<std::byte*>(to) + static_cast<std::size_t>(r) * bytes, bytes, r});
  }
  return enqueue(comm, stream, std::move(operations), {});
}

ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t,
                               ncclComm_t comm, cudaStream_t stream) {
  if (stand_in::count_call("ncclReduceScatter") != cudaSuccess) return ncclSystemError;
  const std::size_t width = width_of(type), bytes = count * width;
  auto pieces = std::make_shared<std::vector<std::byte>>(bytes * static_cast<std::size_t>(comm->ranks));
  std::vector<Operation> operations;
  for (int r = 0; r < comm->ranks; ++r) {
    const std::size_t at = static_cast<std::size_t>(r) * bytes;
    operations.push_back({Verb::send, static_cast<std::byte*>(const_cast<void*>(from)) + at, bytes, r});
    operations.push_back({Verb::receive, pieces->data() + at, bytes, r});
  }
  return enqueue(comm, stream, std::move(operations), [pieces, to, count, width, bytes, type] {
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (std::size_t at = pieces->size(); at > 0; at -= bytes)
        sum += widened(pieces->data() + (at - bytes) + i * width, type);
      put(sum, static_cast<std::byte*>(to) + i * width, type);
    }
  });
}

ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  if (stand_in::count_call("ncclBroadcast") != cudaSuccess) return ncclSystemError;
  const std::size_t bytes = count * width_of(type);
  std::vector<Operation> operations{{Verb::receive, to, bytes, root}};
  if (comm->rank == root)
    for (int r = 0; r < comm->ranks; ++r) operations.push_back({Verb::send, const_cast<void*>(from), bytes, r});
  return enqueue(comm, stream, std::move(operations), {});
}
