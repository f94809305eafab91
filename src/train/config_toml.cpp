// config.toml: every setting as resolved, in the names and forms of the flags, so that `--config` reads it back.
#include <fmt/format.h>

#include "base/size.h"
#include "train/run_folder.h"

namespace transload {

namespace {

/// A TOML basic string.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

/// A size without rounding: in the largest unit that divides it.
std::string exact_size(std::uint64_t bytes) {
  if (bytes != 0 && bytes % GiB == 0) return fmt::format("\"{}GiB\"", bytes / GiB);
  if (bytes != 0 && bytes % MiB == 0) return fmt::format("\"{}MiB\"", bytes / MiB);
  if (bytes != 0 && bytes % KiB == 0) return fmt::format("\"{}KiB\"", bytes / KiB);
  return fmt::format("\"{}\"", bytes);
}

/// A TOML float: shortest text that reads back the same, with a point or an exponent.
std::string number(double v) {
  std::string text = fmt::format("{}", v);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

/// A TOML integer has 63 bits; what is above goes in quotes.
std::string count(std::uint64_t n) { return n <= INT64_MAX ? fmt::format("{}", n) : fmt::format("\"{}\"", n); }

const char* name_of(Schedule s) {
  return s == Schedule::constant ? "constant" : s == Schedule::linear ? "linear" : "cosine";
}
const char* name_of(IoPath p) { return p == IoPath::automatic ? "auto" : p == IoPath::uring ? "uring" : "threads"; }

std::string where_from(const TrainOptions& o) {
  std::string out = fmt::format("model = {}\ndata = {}\nrun = {}\n", quoted(o.model), quoted(o.data), quoted(o.run));
  if (!o.validation.empty()) out += fmt::format("validation = {}\n", quoted(o.validation));
  return out +
         fmt::format("bytes = {}\norder = \"{}\"\n", o.bytes, o.order == Order::shuffled ? "shuffled" : "sequential");
}

/// What a resumed run keeps, on as many ranks as it has: the samples of a step.
std::string samples(const TrainOptions& o) {
  if (o.shards.count == 1 && o.global_batch == 0) return fmt::format("accumulate = {}", o.shape.accumulate);
  return fmt::format("global-batch-size = {}", o.shape.samples_a_step());
}

std::string training(const TrainOptions& o) {
  std::string out = fmt::format(
      "sequence-length = {}\nbatch-size = {}\n{}\nrecompute = \"{}\"\nsteps = {}\nevaluate-every = {}\n"
      "learning-rate = {}\nmin-learning-rate = {}\nschedule = \"{}\"\nwarmup-steps = {}\nweight-decay = {}\n"
      "clip-norm = {}\nbetas = \"{},{}\"\nepsilon = {}\ndtype = \"{}\"\ngradients = \"{}\"\nseed = {}\nthreads = {}\n",
      o.shape.length, o.shape.batch, samples(o), o.shape.recompute == Recompute::none ? "none" : "layer",
      count(o.steps), count(o.evaluate_every), number(o.learning_rate), number(o.min_learning_rate),
      name_of(o.schedule), count(o.warmup_steps), number(o.weight_decay), number(o.clip_norm), o.beta1, o.beta2,
      number(o.epsilon), transload::name_of(o.dtype), transload::name_of(o.gradients), count(o.seed), o.threads);
  if (o.freeze.empty()) return out;
  out += "freeze = [";
  for (std::size_t i = 0; i < o.freeze.size(); ++i) out += (i == 0 ? "" : ", ") + quoted(o.freeze[i]);
  return out + "]\n";
}

std::string memory(const TrainOptions& o) {
  std::string out =
      fmt::format("device = \"{}\"\nhost-memory = {}\n", transload::name_of(o.device), exact_size(o.host_memory));
  if (o.device != DeviceKind::cpu) {
    out += fmt::format("device-memory = {}\n", exact_size(o.device_memory));
    if (o.link_rate > 0) out += fmt::format("link-rate = \"{:.0f}B/s\"\n", o.link_rate);
  }
  if (!o.nvme.empty()) out += fmt::format("nvme = {}\n", quoted(o.nvme));
  if (o.nvme_capacity != UINT64_MAX) out += fmt::format("nvme-capacity = {}\n", exact_size(o.nvme_capacity));
  out += fmt::format("io = \"{}\"\nchunk-size = {}\npolicy = \"{}\"\n", name_of(o.io), exact_size(o.chunk_size),
                     o.lru ? "lru" : "auto");
  out += o.commit_every.steps > 0 ? fmt::format("commit-every = \"{}\"\n", o.commit_every.steps)
                                  : fmt::format("commit-every = \"{}s\"\n", o.commit_every.seconds);
  out += fmt::format("timeout = \"{}s\"\nreduction = \"{}\"\n", number(o.timeout_s),
                     o.reduction == Reduction::tree ? "tree" : "library");
  return out +
         fmt::format("durability = \"{}\"\nexport-every = {}\n", o.durable ? "commit" : "none", count(o.export_every));
}

}  // namespace

std::string config_toml(const TrainOptions& options) {
  return "# Every setting of this run as resolved. `transload train --config FILE` reads it back; flags win.\n" +
         where_from(options) + training(options) + memory(options);
}

}  // namespace transload
