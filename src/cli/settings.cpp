#include "cli/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/size.h"
#include "cli/nearest.h"
#include "cli/values.h"

namespace transload::cli {
namespace {

using Text = const std::string&;
constexpr double kAnyNumber = std::numeric_limits<double>::max();

bool parse_switch(Text value, Text what) { return parse_choice(value, what, {"false", "true"}) == 1; }

void add_inputs(std::vector<Setting>& s) {
  const std::string group = "Model and data";
  s.push_back({"model", "DIR|NAME", group,
               "Hugging Face folder (config.json, model.safetensors or a sharded set; without weights the model begins "
               "from --seed), or a built-in name: gpt2-124m … gpt2-1558m, llama-60m, llama-350m, llama-1b, llama-7b, "
               "qwen2-0.5b, qwen2-1.5b, qwen2-7b",
               false, [](TrainOptions& o, Text v, Text) { o.model = v; }});
  s.push_back({"data", "FILE", group, "UTF-8 text (tokenized by bytes), or .bin of uint16/uint32 token ids", false,
               [](TrainOptions& o, Text v, Text) { o.data = v; }});
  s.push_back({"validation", "FILE", group, "as --data; its loss is computed every --evaluate-every steps", false,
               [](TrainOptions& o, Text v, Text) { o.validation = v; }});
  s.push_back({"bytes", "", group, "allow text by bytes with a folder whose vocabulary is above 512", false,
               [](TrainOptions& o, Text v, Text w) { o.bytes = parse_switch(v, w); }});
  s.push_back({"run", "DIR", group, "run folder: config.toml, record.jsonl, summary.json and the store", false,
               [](TrainOptions& o, Text v, Text) { o.run = v; }});
  s.push_back({"resume", "", group, "go on from the run's last commit; settings not given come from its config.toml",
               false, [](TrainOptions& o, Text v, Text w) { o.resume = parse_switch(v, w); }});
  s.push_back({"order", "ORDER", group, "shuffled (default) | sequential: samples in the order of the file", false,
               [](TrainOptions& o, Text v, Text w) {
                 o.order = parse_choice(v, w, {"shuffled", "sequential"}) == 0 ? Order::shuffled : Order::sequential;
               }});
}

void add_shape(std::vector<Setting>& s) {
  const std::string group = "A step";
  const auto size = [&s, &group](Text name, Text help, std::int64_t StepShape::*field) {
    s.push_back({name, "N", group, help, false, [field](TrainOptions& o, Text v, Text w) {
                   const std::uint64_t n = parse_count(v, w, 1);
                   if (n > (std::uint64_t{1} << 31)) throw InputError(fmt::format("{} is too large: {}.", w, v));
                   o.shape.*field = static_cast<std::int64_t>(n);
                 }});
  };
  size("sequence-length", "tokens of a sample (256)", &StepShape::length);
  size("batch-size", "samples of a micro-batch (4)", &StepShape::batch);
  size("accumulate", "micro-batches of a step (1)", &StepShape::accumulate);
  s.push_back({"global-batch-size", "N", group,
               "samples of a step on all ranks; --accumulate follows from it (batch-size × accumulate × ranks)", false,
               [](TrainOptions& o, Text v, Text w) {
                 o.global_batch = parse_count(v, w, 1);
                 if (o.global_batch > (std::uint64_t{1} << 31))
                   throw InputError(fmt::format("{} is too large: {}.", w, v));
               }});
  s.push_back({"steps", "N", group, "steps of the whole run, those before a resume counted (100)", false,
               [](TrainOptions& o, Text v, Text w) { o.steps = parse_count(v, w, 1); }});
  s.push_back({"evaluate-every", "N", group, "validation loss every N steps", false,
               [](TrainOptions& o, Text v, Text w) { o.evaluate_every = parse_count(v, w, 0); }});
  s.push_back({"recompute", "WHAT", group,
               "layer (default): inner activations and logits are computed again in backward | none", false,
               [](TrainOptions& o, Text v, Text w) {
                 o.shape.recompute = parse_choice(v, w, {"none", "layer"}) == 0 ? Recompute::none : Recompute::layer;
               }});
}

void add_training(std::vector<Setting>& s) {
  const std::string group = "Training";
  const auto number = [&s, &group](Text name, Text help, double TrainOptions::*field) {
    s.push_back({name, "X", group, help, false,
                 [field](TrainOptions& o, Text v, Text w) { o.*field = parse_number(v, w, 0, kAnyNumber); }});
  };
  number("learning-rate", "peak learning rate (3e-4)", &TrainOptions::learning_rate);
  s.push_back({"schedule", "KIND", group, "constant (default) | linear | cosine, after the warm-up", false,
               [](TrainOptions& o, Text v, Text w) {
                 o.schedule = static_cast<Schedule>(parse_choice(v, w, {"constant", "linear", "cosine"}));
               }});
  s.push_back({"warmup-steps", "N", group, "steps of linear warm-up (0)", false,
               [](TrainOptions& o, Text v, Text w) { o.warmup_steps = parse_count(v, w, 0); }});
  number("min-learning-rate", "where linear and cosine end (0)", &TrainOptions::min_learning_rate);
  number("weight-decay", "decoupled, on parameters of two or more dimensions (0.1)", &TrainOptions::weight_decay);
  number("clip-norm", "largest norm of the gradient (1.0); 0: no clipping", &TrainOptions::clip_norm);
  s.push_back({"betas", "B1,B2", group, "Adam's (0.9,0.95)", false,
               [](TrainOptions& o, Text v, Text w) { std::tie(o.beta1, o.beta2) = parse_betas(v, w); }});
  s.push_back({"epsilon", "X", group, "Adam's (1e-8)", false, [](TrainOptions& o, Text v, Text w) {
                 o.epsilon = parse_number(v, w, 0, 1);
                 if (o.epsilon <= 0) throw InputError(fmt::format("{} must be above 0, not '{}'.", w, v));
               }});
  const auto dtype = [&s, &group](Text name, Text help, Dtype TrainOptions::*field) {
    s.push_back({name, "TYPE", group, help, false, [field](TrainOptions& o, Text v, Text w) {
                   o.*field = parse_choice(v, w, {"bf16", "fp32"}) == 0 ? Dtype::bf16 : Dtype::f32;
                 }});
  };
  dtype("dtype", "bf16 (default; the fp32 master is kept exactly) | fp32", &TrainOptions::dtype);
  dtype("gradients", "bf16 | fp32 (default: as --dtype)", &TrainOptions::gradients);
  s.push_back({"seed", "N", group, "of the first weights and the order of the data (1)", false,
               [](TrainOptions& o, Text v, Text w) { o.seed = parse_count(v, w, 0); }});
  s.push_back({"freeze", "PATTERN", group, "parameters (shell pattern of names) that are not trained; may be repeated",
               true, [](TrainOptions& o, Text v, Text) { o.freeze.push_back(v); }});
  s.push_back({"threads", "N", group, "threads of computation (all that the process may use)", false,
               [](TrainOptions& o, Text v, Text w) {
                 o.threads = static_cast<int>(std::min<std::uint64_t>(parse_count(v, w, 0), 4096));
               }});
}

void add_memory(std::vector<Setting>& s) {
  const std::string group = "Memory";
  s.push_back(
      {"device", "KIND", group,
       "cpu (default): two tiers, host and NVMe | cuda: a GPU's memory besides | emulated: a device tier in host "
       "memory with streams and copies of its own",
       false, [](TrainOptions& o, Text v, Text w) {
         o.device = static_cast<DeviceKind>(parse_choice(v, w, {"cpu", "emulated", "cuda"}));
       }});
  const auto size = [&s, &group](Text name, Text help, std::uint64_t TrainOptions::*field) {
    s.push_back(
        {name, "SIZE", group, help, false, [field](TrainOptions& o, Text v, Text w) { o.*field = parse_size(v, w); }});
  };
  size("device-memory",
       "budget of the device (cuda: what is free, less a stated reserve; emulated: a quarter of --host-memory)",
       &TrainOptions::device_memory);
  s.push_back({"link-rate", "RATE", group, "emulated link, each way, such as 25GB/s (memory speed)", false,
               [](TrainOptions& o, Text v, Text w) { o.link_rate = parse_rate(v, w); }});
  size("host-memory", "budget of host memory (what the machine or container leaves, less a stated reserve)",
       &TrainOptions::host_memory);
  s.push_back({"nvme", "DIR", group, "folder of the store (the run folder)", false,
               [](TrainOptions& o, Text v, Text) { o.nvme = v; }});
  size("nvme-capacity", "most bytes of the store; 0: no store, nothing is committed (no limit)",
       &TrainOptions::nvme_capacity);
  s.push_back({"io", "PATH", group, "auto (default) | uring | threads", false, [](TrainOptions& o, Text v, Text w) {
                 o.io = static_cast<IoPath>(parse_choice(v, w, {"auto", "uring", "threads"}));
               }});
  size("chunk-size", "weight bytes of a chunk (chosen by search; a store keeps its own)", &TrainOptions::chunk_size);
  s.push_back({"policy", "NAME", group, "auto (default): planned, farthest next use | lru, only to compare", false,
               [](TrainOptions& o, Text v, Text w) {
                 o.lru = parse_choice(v, w, {"auto", "lru"}) == 1;
               }});
  s.push_back({"commit-every", "N|TIME", group, "steps (20) or time (30s, 5min, 1h) between commits (5min)", false,
               [](TrainOptions& o, Text v, Text w) { o.commit_every = parse_commit_every(v, w); }});
  s.push_back({"durability", "WHAT", group, "commit (default) | none: half the room on disk, but a crash loses the run",
               false, [](TrainOptions& o, Text v, Text w) {
                 o.durable = parse_choice(v, w, {"commit", "none"}) == 0;
               }});
  s.push_back({"export-every", "N", group, "write a whole export into a numbered folder every N steps", false,
               [](TrainOptions& o, Text v, Text w) { o.export_every = parse_count(v, w, 0); }});
}

void add_ranks(std::vector<Setting>& s) {
  const std::string group = "Many ranks (mpirun, torchrun, srun, or transload launch)";
  s.push_back({"timeout", "TIME", group, "after which a rank that says nothing is lost and the run ends (60s)", false,
               [](TrainOptions& o, Text v, Text w) {
                 o.timeout_s = parse_duration(v, w);
                 // Clocks count nanoseconds in 63 bits, and multiples of it are waited for.
                 if (o.timeout_s > 1000 * 3600)
                   throw InputError(fmt::format("{} must be at most 1000h, not {}.", w, v));
               }});
  s.push_back({"reduction", "HOW", group,
               "tree (default): gradients are summed in an order fixed by rank | library: in NCCL's, whose bits depend "
               "on the topology",
               false, [](TrainOptions& o, Text v, Text w) {
                 o.reduction = parse_choice(v, w, {"tree", "library"}) == 0 ? Reduction::tree : Reduction::library;
               }});
}

}  // namespace

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = [] {
    std::vector<Setting> s;
    add_inputs(s);
    add_shape(s);
    add_training(s);
    add_memory(s);
    add_ranks(s);
    return s;
  }();
  return all;
}

std::vector<std::string> setting_names() {
  std::vector<std::string> names;
  for (const Setting& s : settings()) names.push_back(s.name);
  return names;
}

const Setting& find_setting(const std::string& name, const std::string& what, const std::string& prefix) {
  for (const Setting& s : settings())
    if (s.name == name) return s;
  throw InputError(fmt::format("{} is not known.{}", what, did_you_mean(name, setting_names(), prefix)));
}

}  // namespace transload::cli
