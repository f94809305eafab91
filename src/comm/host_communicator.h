// HostCommunicator: the collectives over mailboxes, one for each plane. Blocks stream through in pieces: the next piece
// is posted before the one before it is taken. A message begins with what it belongs to, which the receiver checks.
//
// Ownership: the monitor, the mailboxes and what they stand on.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/mailbox.h"
#include "comm/monitor.h"
#include "comm/wire.h"

namespace transload {

class HostCommunicator final : public Communicator {
 public:
  struct Parts {
    Place place;
    const char* transport = "";
    std::string note;
    std::unique_ptr<Wire> wire;  ///< what mailboxes stand on where memory is not shared; goes last
    std::unique_ptr<Monitor> monitor;
    std::unique_ptr<Mailbox> data, control;
  };
  explicit HostCommunicator(Parts parts);
  ~HostCommunicator() override;

  const Place& place() const override { return parts_.place; }
  const char* transport() const override { return parts_.transport; }
  std::string note() const override { return parts_.note; }
  std::uint64_t memory_bytes() const override;
  void all_gather(const BlockView& in, const BlockView& out, Stream& stream) override;
  void reduce_scatter(const BlockView& in, const BlockView& out, Dtype pieces, Stream& stream) override;
  void broadcast(const BlockView& data, int root, Stream& stream) override;
  void exchange(std::span<const std::byte> mine, std::span<std::byte> all) override;
  void publish(const Status& status) override;
  void fail(const std::string& why) override;
  Monitor& monitor() { return *parts_.monitor; }

 private:
  struct Plane;
  struct Transfer;
  Parts parts_;
  std::unique_ptr<Plane> data_, control_;
  std::atomic<std::int64_t> chunk_{-1};  ///< published by the task of the collective that follows
};

/// make_communicator of several ranks.
std::unique_ptr<HostCommunicator> make_host_communicator(const Launch& launch, const CommOptions& options);

}  // namespace transload
