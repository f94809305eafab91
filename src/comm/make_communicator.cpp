// From how the process was launched to a communicator: the star brings the ranks together, then one node gets shared
// memory, and otherwise the launcher's library carries the messages.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "base/check.h"
#include "base/error.h"
#include "base/size.h"
#include "comm/host_communicator.h"
#include "comm/launch.h"
#include "comm/shared_mailbox.h"
#include "comm/wire.h"

namespace transload {
namespace {

constexpr std::uint64_t kControlRoom = 64 * KiB;
constexpr std::uint64_t kLeastRoom = 64 * KiB, kMostRoom = 1 * MiB;
constexpr std::uint64_t kHeaderRoom = 128;  // a message's header, and its rounding

// Pieces that stay in a processor's cache; not more than the largest collective asks for.
std::uint64_t data_room(const CommOptions& options, int size) {
  const auto ranks = static_cast<std::uint64_t>(size);
  const std::uint64_t wanted = round_up(options.largest_bytes + ranks * kHeaderRoom, 4 * KiB);
  return std::clamp(wanted, std::max(kLeastRoom, round_up(ranks * 4 * KiB, 4 * KiB)),
                    std::max(kMostRoom, ranks * 16 * KiB));
}

std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// Equal for ranks that see the same /dev/shm.
std::string node_of() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat facts {};
  if (::stat("/dev/shm", &facts) != 0) facts = {};
  return fmt::format("{} {} {}", boot, facts.st_dev, facts.st_ino);
}

// What the launcher says goes before what the nodes tell: ranks in containers of their own do not see each other.
void find_local(const std::vector<std::string>& nodes, const Launch& launch, Place* place) {
  const std::string& mine = nodes[static_cast<std::size_t>(place->rank)];
  const auto here = std::count(nodes.begin(), nodes.end(), mine);
  const auto before = std::count(nodes.begin(), nodes.begin() + place->rank, mine);
  place->local_rank = launch.local_rank.value_or(static_cast<int>(before));
  place->local_size = launch.local_size.value_or(std::max(static_cast<int>(here), place->local_rank + 1));
}

// Rank 0 makes it and the others attach, or nobody has it and all know why.
std::shared_ptr<SharedSegment> share_memory(Star& star, std::uint64_t bytes, std::string* reason) {
  auto segment = std::make_shared<SharedSegment>();
  if (star.rank() == 0) *reason = segment->create(bytes);
  const std::string made = star.all_gather(reason->empty() ? "+" + segment->path() : *reason)[0];
  if (star.rank() != 0) *reason = made.starts_with('+') ? segment->attach(made.substr(1), bytes) : made;
  const std::vector<std::string> reasons = star.all_gather(*reason);
  segment->remove_name();
  for (std::size_t r = 0; r < reasons.size() && reason->empty(); ++r)
    if (!reasons[r].empty()) *reason = fmt::format("rank {}: {}", r, reasons[r]);
  return reason->empty() ? segment : nullptr;
}

std::unique_ptr<Star> make_star(const Launch& launch, const CommOptions& options) {
  StarOptions star;
  star.rank = launch.place.rank;
  star.size = launch.place.size;
  star.hosts = {launch.host};
  star.port = launch.port;
  star.patience = options.timeout;
  star.token = hash_of(launch.job);
  return std::make_unique<Star>(std::move(star));
}

void over_shared_memory(HostCommunicator::Parts* parts, std::uint64_t room,
                        const std::shared_ptr<SharedSegment>& segment) {
  const auto make = [&](std::byte* at, std::uint64_t bytes) {
    return std::make_unique<SharedMailbox>(at, parts->place.rank, parts->place.size, bytes, *parts->monitor, segment);
  };
  parts->transport = "shared memory";
  parts->data = make(segment->data(), room);
  parts->control = make(segment->data() + SharedMailbox::bytes_for(parts->place.size, room), kControlRoom);
}

void over_wire(HostCommunicator::Parts* parts, std::uint64_t room) {
  parts->transport = parts->wire->name();
  parts->data = parts->wire->make_mailbox(0, room, *parts->monitor);
  parts->control = parts->wire->make_mailbox(1, kControlRoom, *parts->monitor);
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(const Launch& launch, const CommOptions& options) {
  if (launch.place.size == 1) return make_one_process();
  return make_host_communicator(launch, options);
}

std::unique_ptr<HostCommunicator> make_host_communicator(const Launch& launch, const CommOptions& options) {
  if (launch.place.size > kMostRanks)
    throw InputError(
        fmt::format("{} ranks were started; this build is made for {} at most.", launch.place.size, kMostRanks));
  HostCommunicator::Parts parts;
  parts.place = launch.place;
  std::unique_ptr<Star> star;
  if (launch.launcher == Launcher::mpi) {
    MpiStart start = start_mpi(launch, options.timeout);
    parts.place = start.place;
    parts.wire = std::move(start.wire);
    star = std::move(start.star);
  } else {
    star = make_star(launch, options);
  }
  const std::vector<std::string> nodes = star->all_gather(node_of());
  find_local(nodes, launch, &parts.place);
  const bool one_node = std::all_of(nodes.begin(), nodes.end(), [&](const std::string& n) { return n == nodes[0]; });

  const std::uint64_t room = data_room(options, parts.place.size);
  const std::uint64_t bytes =
      SharedMailbox::bytes_for(parts.place.size, room) + SharedMailbox::bytes_for(parts.place.size, kControlRoom);
  std::shared_ptr<SharedSegment> segment;
  if (!options.shared_memory)
    parts.note = "shared memory was not asked for";
  else if (one_node)
    segment = share_memory(*star, bytes, &parts.note);
  if (segment)
    parts.wire.reset();  // MPI has done its part
  else if (!parts.wire)
    parts.wire = connect_gloo(*star, options.timeout);
  parts.monitor = std::make_unique<Monitor>(std::move(star), options.timeout);
  if (segment)
    over_shared_memory(&parts, room, segment);
  else
    over_wire(&parts, room);
  return std::make_unique<HostCommunicator>(std::move(parts));
}

}  // namespace transload
