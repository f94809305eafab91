// MPI as a wire. Calls of all threads go through one mutex (MPI_THREAD_SERIALIZED); whoever waits polls, with pauses
// that grow, since MPI offers no wait that ends when a rank is lost. MPI orders messages of one sender and tag, and a
// rank is never more than two rounds ahead of another, so what MPI keeps of early messages is bounded.
//
// After a loss nothing of MPI is called any more: requests and the memory they may write to are left to the process's
// end.
#include "comm/wire.h"

#ifdef TRANSLOAD_HAVE_MPI
#include <fmt/format.h>
#include <mpi.h>

#include <mutex>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "base/os.h"
#endif

#include "base/check.h"
#include "base/error.h"
#include "base/size.h"

namespace transload {

#ifndef TRANSLOAD_HAVE_MPI

MpiStart start_mpi(const Launch&, std::chrono::milliseconds) {
  throw Error("An MPI launcher started this process, and this build has no MPI (libopenmpi-dev).");
}

#else

namespace {

using Clock = std::chrono::steady_clock;

/// MPI between MPI_Init and MPI_Finalize.
class Library {
 public:
  Library();
  ~Library();
  Library(const Library&) = delete;
  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm ranks() const { return ranks_; }
  void abandon() { abandoned_ = true; }
  bool abandoned() const { return abandoned_; }
  /// Calls into MPI. Error with MPI's words where it fails.
  template <class Call>
  void call(const char* name, Call&& fn) {
    const std::lock_guard lock(mutex_);
    if (const int code = fn(); code != MPI_SUCCESS) fail(name, code);
  }

 private:
  [[noreturn]] static void fail(const char* name, int code);
  std::mutex mutex_;
  MPI_Comm ranks_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  bool ours_ = false, abandoned_ = false;
};

Library::Library() {
  int before = 0, level = 0;
  MPI_Initialized(&before);
  ours_ = before == 0;
  if (ours_)
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
  else
    MPI_Query_thread(&level);
  if (level < MPI_THREAD_SERIALIZED)
    throw Error("This MPI does not let several threads call it (MPI_THREAD_SERIALIZED).");
  MPI_Comm_dup(MPI_COMM_WORLD, &ranks_);
  MPI_Comm_set_errhandler(ranks_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(ranks_, &rank_);
  MPI_Comm_size(ranks_, &size_);
}

Library::~Library() {
  if (abandoned_) return;
  MPI_Comm_free(&ranks_);
  if (ours_) MPI_Finalize();
}

void Library::fail(const char* name, int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(fmt::format("{} failed: {}", name, text));
}

class MpiMailbox final : public Mailbox {
 public:
  MpiMailbox(std::shared_ptr<Library> mpi, int channel, std::uint64_t room_bytes, Monitor& monitor)
      : mpi_(std::move(mpi)),
        channel_(channel),
        room_bytes_(room_bytes),
        monitor_(monitor),
        memory_(2 * static_cast<std::uint64_t>(mpi_->size()) * room_bytes, true),
        requests_(4 * static_cast<std::size_t>(mpi_->size()), MPI_REQUEST_NULL) {}
  ~MpiMailbox() override;

  std::uint64_t room_bytes() const override { return room_bytes_; }
  std::uint64_t memory_bytes() const override { return memory_.bytes(); }
  std::byte* begin(const Round& round) override;
  void post(const Round& round) override;
  const std::byte* take(const Round& round, int from) override;
  void end(const Round&) override {}

 private:
  std::size_t index(const Round& round, int rank) const {
    return round.number % 2 * static_cast<std::size_t>(mpi_->size()) + static_cast<std::size_t>(rank);
  }
  std::byte* place(const Round& round, int rank) const { return memory_.data() + index(round, rank) * room_bytes_; }
  MPI_Request& receipt(const Round& round, int from) { return requests_[2 * index(round, from)]; }
  MPI_Request& sending(const Round& round, int to) { return requests_[2 * index(round, to) + 1]; }
  void await(MPI_Request& request, int peer);

  const std::shared_ptr<Library> mpi_;
  const int channel_;
  const std::uint64_t room_bytes_;
  Monitor& monitor_;
  os::Memory memory_;
  std::vector<MPI_Request> requests_;
};

// All ranks have left: what was sent has been taken, and MPI need only be told. After a loss the memory stays.
MpiMailbox::~MpiMailbox() {
  if (mpi_->abandoned()) {
    (void)new os::Memory(std::move(memory_));
    return;
  }
  mpi_->call("MPI_Waitall",
             [&] { return MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE); });
}

void MpiMailbox::await(MPI_Request& request, int peer) {
  const auto began = Clock::now();
  for (int tries = 0;; ++tries) {
    int done = 0;
    mpi_->call("MPI_Test", [&] { return MPI_Test(&request, &done, MPI_STATUS_IGNORE); });
    if (done != 0) return;
    if (tries < 50) {
      std::this_thread::yield();
      continue;
    }
    monitor_.check(peer);
    if (Clock::now() - began > monitor_.patience())
      monitor_.explain(peer, fmt::format("it lives and did not come to this operation in {}.",
                                         format_duration(std::chrono::duration<double>(monitor_.patience()).count())));
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(tries, 500)));
  }
}

std::byte* MpiMailbox::begin(const Round& round) {
  if (monitor_.lost()) monitor_.check(mpi_->rank());
  for (int r = 0; r < mpi_->size(); ++r)
    if (r != mpi_->rank()) await(sending(round, r), r);
  return place(round, mpi_->rank());
}

void MpiMailbox::post(const Round& round) {
  const int rank = mpi_->rank(), size = mpi_->size();
  const int own_bytes = static_cast<int>(round.bytes_from(rank));
  for (int step = 1; step < size; ++step) {
    const int to = (rank + step) % size, from = (rank - step + size) % size;
    mpi_->call("MPI_Irecv", [&] {
      return MPI_Irecv(place(round, from), static_cast<int>(round.bytes_from(from)), MPI_BYTE, from, channel_,
                       mpi_->ranks(), &receipt(round, from));
    });
    mpi_->call("MPI_Isend", [&] {
      return MPI_Isend(place(round, rank) + static_cast<std::uint64_t>(to) * round.stride, own_bytes, MPI_BYTE, to,
                       channel_, mpi_->ranks(), &sending(round, to));
    });
  }
}

const std::byte* MpiMailbox::take(const Round& round, int from) {
  await(receipt(round, from), from);
  return place(round, from);
}

class MpiWire final : public Wire {
 public:
  explicit MpiWire(std::shared_ptr<Library> mpi) : mpi_(std::move(mpi)) {}
  const char* name() const override { return "MPI"; }
  std::unique_ptr<Mailbox> make_mailbox(int channel, std::uint64_t room_bytes, Monitor& monitor) override {
    return std::make_unique<MpiMailbox>(mpi_, channel, room_bytes, monitor);
  }
  void abandon() override { mpi_->abandon(); }

 private:
  const std::shared_ptr<Library> mpi_;
};

/// Where rank 0 listens, told to all by MPI.
struct Meeting {
  std::uint64_t token = 0;
  int port = 0;
  char hosts[500] = "";
};

StarOptions meet(Library& mpi, std::chrono::milliseconds timeout) {
  StarOptions star;
  star.rank = mpi.rank();
  star.size = mpi.size();
  star.patience = timeout;
  Meeting meeting;
  if (star.rank == 0) {
    star.listener = listen_on(0, false);
    std::random_device random;
    meeting.token = std::uint64_t{random()} << 32 | random();
    meeting.port = port_of(star.listener);
    std::string hosts;
    for (const std::string& host : own_addresses())
      if (hosts.size() + host.size() + 2 < sizeof(meeting.hosts)) hosts += host + " ";
    hosts.copy(meeting.hosts, sizeof(meeting.hosts) - 1);
  }
  mpi.call("MPI_Bcast", [&] { return MPI_Bcast(&meeting, sizeof(meeting), MPI_BYTE, 0, mpi.ranks()); });
  star.token = meeting.token;
  star.port = meeting.port;
  std::istringstream hosts(meeting.hosts);
  for (std::string host; hosts >> host;) star.hosts.push_back(host);
  return star;
}

std::string version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, static_cast<std::size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

}  // namespace

MpiStart start_mpi(const Launch& launch, std::chrono::milliseconds timeout) {
  auto mpi = std::make_shared<Library>();
  if (mpi->size() != launch.place.size)
    throw InputError(fmt::format(
        "The launcher says that this is rank {} of {}, and MPI that it is {} of {}: {} does not understand this "
        "launcher. Use the mpirun that belongs to it, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.",
        launch.place.rank, launch.place.size, mpi->rank(), mpi->size(), version()));
  MpiStart start;
  start.place = launch.place;
  start.place.rank = mpi->rank();
  start.star = std::make_unique<Star>(meet(*mpi, timeout));
  start.wire = std::make_unique<MpiWire>(std::move(mpi));
  return start;
}

#endif

}  // namespace transload
