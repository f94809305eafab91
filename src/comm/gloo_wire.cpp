// Gloo's TCP transport as a wire: unbound buffers for what is sent and for what comes from each rank, made once. A
// message travels when its receiver has asked for it, so nothing piles up. A wait that outlasts Gloo's timeout breaks
// the whole context; so waits are long, and the monitor ends them when a rank is lost.
#include "comm/wire.h"

#ifdef TRANSLOAD_HAVE_GLOO
#include <fmt/format.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <csignal>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/os.h"
#endif

#include "base/check.h"
#include "base/error.h"
#include "base/size.h"

namespace transload {

#ifndef TRANSLOAD_HAVE_GLOO

std::unique_ptr<Wire> connect_gloo(Star&, std::chrono::milliseconds) {
  throw Error("Ranks that cannot share memory need Gloo (libgloo-dev) or MPI, and this build has no Gloo.");
}

#else

namespace {

using Buffer = gloo::transport::UnboundBuffer;

/// Every rank sets one key after the other, the same number: each time all get what all have set.
class StarStore final : public gloo::rendezvous::Store {
 public:
  explicit StarStore(Star& star) : star_(star) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    for (const std::string& entry : star_.all_gather(key + '\n' + std::string(data.begin(), data.end()))) {
      const std::size_t end = entry.find('\n');
      values_[entry.substr(0, end)] = {entry.begin() + static_cast<std::ptrdiff_t>(end) + 1, entry.end()};
    }
  }
  std::vector<char> get(const std::string& key) override { return values_.at(key); }
  void wait(const std::vector<std::string>&) override {}

 private:
  Star& star_;
  std::map<std::string, std::vector<char> > values_;
};

class GlooMailbox final : public Mailbox {
 public:
  GlooMailbox(std::shared_ptr<gloo::Context> context, int channel, std::uint64_t room_bytes, Monitor& monitor);
  ~GlooMailbox() override;

  std::uint64_t room_bytes() const override { return room_bytes_; }
  std::uint64_t memory_bytes() const override { return memory_.bytes(); }
  std::byte* begin(const Round& round) override;
  void post(const Round& round) override;
  const std::byte* take(const Round& round, int from) override;
  void end(const Round&) override {}

 private:
  struct Half {
    std::unique_ptr<Buffer> out;
    std::vector<std::unique_ptr<Buffer> > in;  ///< by rank; none for this one
    int sends = 0;                             ///< not waited for yet
  };
  Half& half(const Round& round) { return halves_[round.number % 2]; }
  std::byte* place(std::size_t half, int slot) const {
    const std::size_t slots = static_cast<std::size_t>(context_->size);
    return memory_.data() + (half * slots + static_cast<std::size_t>(slot)) * room_bytes_;
  }
  void wake();  ///< a rank is lost: waits under way end
  void abandon();
  template <class Call>
  void guarded(int peer, Call&& call);

  const std::shared_ptr<gloo::Context> context_;
  const std::uint64_t channel_, room_bytes_;
  Monitor& monitor_;
  os::Memory memory_;
  Half halves_[2];
  int wake_number_ = 0;
};

GlooMailbox::GlooMailbox(std::shared_ptr<gloo::Context> context, int channel, std::uint64_t room_bytes,
                         Monitor& monitor)
    : context_(std::move(context)),
      channel_(static_cast<std::uint64_t>(channel)),
      room_bytes_(room_bytes),
      monitor_(monitor),
      memory_(2 * static_cast<std::uint64_t>(context_->size) * room_bytes, true) {
  for (std::size_t h = 0; h < 2; ++h) {
    halves_[h].in.resize(static_cast<std::size_t>(context_->size));
    for (int r = 0; r < context_->size; ++r) {
      auto buffer = context_->createUnboundBuffer(place(h, r), room_bytes_);
      if (r == context_->rank)
        halves_[h].out = std::move(buffer);
      else
        halves_[h].in[static_cast<std::size_t>(r)] = std::move(buffer);
    }
  }
  wake_number_ = monitor_.on_loss([this] { wake(); });
}

// All ranks have left, so what was sent has been taken; Gloo's thread must have said so before its buffers go.
// Where a rank is lost Gloo's thread may still be at work on them, and nothing tells when it is not: they stay until
// the process has ended, which it is about to (Communicator).
GlooMailbox::~GlooMailbox() {
  monitor_.forget(wake_number_);
  if (monitor_.lost()) {
    abandon();
    return;
  }
  try {
    for (Half& half : halves_)
      for (; half.sends > 0 && !monitor_.lost(); --half.sends) half.out->waitSend(nullptr, monitor_.timeout());
  } catch (const gloo::Exception&) {  // a connection is gone: so is what it carried
  }
}

void GlooMailbox::abandon() {
  struct Abandoned {
    std::shared_ptr<gloo::Context> context;
    Half halves[2];
    os::Memory memory;
  };
  static std::mutex mutex;
  static auto* const all = new std::vector<std::unique_ptr<Abandoned> >();
  const std::lock_guard lock(mutex);
  all->push_back(std::unique_ptr<Abandoned>(
      new Abandoned{context_, {std::move(halves_[0]), std::move(halves_[1])}, std::move(memory_)}));
}

void GlooMailbox::wake() {
  for (Half& half : halves_) {
    half.out->abortWaitSend();
    for (const auto& buffer : half.in)
      if (buffer) buffer->abortWaitRecv();
  }
}

/// `call` false: the wait was ended by the monitor. What Gloo throws is explained by the verdict that follows it.
template <class Call>
void GlooMailbox::guarded(int peer, Call&& call) {
  std::string what = "it lives and did not come to this operation.";
  try {
    if (monitor_.lost()) monitor_.check(peer);
    if (call()) return;
    monitor_.check(peer);
  } catch (const gloo::Exception& error) {
    what = error.what();
  }
  monitor_.explain(peer, what);
}

std::byte* GlooMailbox::begin(const Round& round) {
  Half& mine = half(round);
  for (; mine.sends > 0; --mine.sends)
    guarded(context_->rank, [&] { return mine.out->waitSend(nullptr, monitor_.patience()); });
  return static_cast<std::byte*>(mine.out->ptr);
}

// Both channels share the connections; the slot tells their messages apart.
void GlooMailbox::post(const Round& round) {
  Half& mine = half(round);
  const std::uint64_t slot = (static_cast<std::uint64_t>(round.number) << 1 | channel_) + (std::uint64_t{1} << 40);
  for (int step = 1; step < context_->size; ++step) {
    const int to = (context_->rank + step) % context_->size;
    const int from = (context_->rank - step + context_->size) % context_->size;
    guarded(from, [&] {
      mine.in[static_cast<std::size_t>(from)]->recv(from, slot, 0, round.bytes_from(from));
      return true;
    });
    guarded(to, [&] {
      mine.out->send(to, slot, static_cast<std::uint64_t>(to) * round.stride, round.bytes_from(context_->rank));
      return true;
    });
    ++mine.sends;
  }
}

const std::byte* GlooMailbox::take(const Round& round, int from) {
  Buffer& buffer = *half(round).in[static_cast<std::size_t>(from)];
  guarded(from, [&] { return buffer.waitRecv(nullptr, monitor_.patience()); });
  return static_cast<const std::byte*>(buffer.ptr);
}

class GlooWire final : public Wire {
 public:
  explicit GlooWire(std::shared_ptr<gloo::Context> context) : context_(std::move(context)) {}
  const char* name() const override { return "TCP"; }
  std::unique_ptr<Mailbox> make_mailbox(int channel, std::uint64_t room_bytes, Monitor& monitor) override {
    return std::make_unique<GlooMailbox>(context_, channel, room_bytes, monitor);
  }

 private:
  const std::shared_ptr<gloo::Context> context_;
};

}  // namespace

/// Gloo writes to a rank that has died without asking for no signal; unhandled, that ends this process without a word.
static void ignore_broken_pipes() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

std::unique_ptr<Wire> connect_gloo(Star& star, std::chrono::milliseconds timeout) {
  ignore_broken_pipes();
  gloo::transport::tcp::attr attributes;
  attributes.hostname = star.own_address();
  try {
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
    auto context = std::make_shared<gloo::rendezvous::Context>(star.rank(), star.size());
    context->setTimeout(timeout);
    StarStore store(star);
    context->connectFullMesh(store, device);
    return std::make_unique<GlooWire>(std::move(context));
  } catch (const gloo::Exception& error) {
    throw Error(fmt::format("Rank {} cannot connect to the others by TCP from {}: {}", star.rank(), attributes.hostname,
                            error.what()));
  }
}

#endif

}  // namespace transload
