// The step code beside PyTorch: gradients of several panels against differences of the loss, accumulation, the dry run,
// sizes and counts.
#include "train/transformer.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"
#include "base/size.h"
#include "train/rotary_tables.h"
#include "train/training_rig.h"

namespace transload::testing {
namespace {

ModelConfig tiny_llama() {
  ModelConfig c;
  c.vocab = 200;
  c.hidden = 64;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 16;
  c.intermediate = 96;
  c.max_positions = 64;
  c.tied = true;
  return c;
}

ModelConfig tiny_gpt2() {
  ModelConfig c = tiny_llama();
  c.family = Family::gpt2;
  c.kv_heads = c.heads;
  c.qkv_bias = c.out_bias = c.mlp_bias = true;
  c.activation = "gelu_new";
  return c;
}

}  // namespace

TEST_CASE("gradients of several panels are the slope of the loss") {
  // Along its own gradient g the loss changes by ±ε|g|²; a panel left out, doubled or misplaced changes that by a part
  // as large as the panel.
  ModelConfig config = GENERATE(tiny_llama(), tiny_gpt2());
  config.layers = 1;
  config.vocab = 20000;
  config.intermediate = 20000;
  config.initializer_range = 0.05;
  const bool gpt2 = config.family == Family::gpt2;
  RigOptions o;
  o.chunk_bytes = 900000;
  o.placement = Placement::scattered;
  o.shape = {.batch = 2, .length = 12, .accumulate = 1, .recompute = Recompute::layer};
  const auto batches = random_batches(config, o.shape, 5);
  TrainingRig rig(config, *weights_from_seed(config, 3), o);
  rig.forward_backward(batches);
  rig.finish();
  const Tensors gradients = rig.plane("gradient");
  for (const std::string& name :
       gpt2 ? std::vector<std::string>{"transformer.wte.weight", "transformer.wpe.weight",
                                       "transformer.h.0.mlp.c_fc.weight", "transformer.h.0.mlp.c_proj.weight"}
            : std::vector<std::string>{"model.embed_tokens.weight", "model.layers.0.mlp.gate_proj.weight",
                                       "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"}) {
    CAPTURE(name);
    const std::vector<float>& g = gradients.at(name);
    double square = 0;
    for (const float v : g) square += static_cast<double>(v) * v;
    REQUIRE(square > 0);
    const double step = 4e-3 / std::sqrt(square);  // ±0.4 % of |g| in the loss
    rig.shift(name, g, step);
    const double above = rig.evaluate(batches[0]);
    rig.shift(name, g, -2 * step);
    const double below = rig.evaluate(batches[0]);
    rig.shift(name, g, step);
    const double slope = (above - below) / (2 * step) / static_cast<double>(o.shape.batch * o.shape.length);
    // fp32 losses (a few 1e-7 of some 10) over a difference of some 1e-2 × |g|; the cubic term is far less.
    CHECK(std::abs(slope - square) <= 5e-3 * square);
  }
}

TEST_CASE("micro-batches sum to the batch") {
  const ModelConfig config = GENERATE(tiny_llama(), tiny_gpt2());
  RigOptions whole, parts;
  whole.shape = {.batch = 3, .length = 16, .accumulate = 1, .recompute = Recompute::layer};
  parts.shape = {.batch = 1, .length = 16, .accumulate = 3, .recompute = Recompute::layer};
  const auto weights = weights_from_seed(config, 3);
  const auto split = random_batches(config, parts.shape, 1);
  std::vector<MicroBatch> joined(1);
  for (const MicroBatch& m : split) {
    joined[0].inputs.insert(joined[0].inputs.end(), m.inputs.begin(), m.inputs.end());
    joined[0].targets.insert(joined[0].targets.end(), m.targets.begin(), m.targets.end());
  }
  TrainingRig a(config, *weights, whole), b(config, *weights, parts);
  CHECK(std::abs(a.forward_backward(joined) - b.forward_backward(split)) <= 1e-7 * 6);
  a.finish();
  b.finish();
  const Tensors want = a.plane("gradient"), got = b.plane("gradient");
  for (const auto& [name, values] : got) {
    CAPTURE(name);
    double largest = 0;
    for (const float w : want.at(name)) largest = std::max(largest, static_cast<double>(std::abs(w)));
    // GPT-2's key bias has no gradient: only the rest of its tensor sets the size.
    for (std::size_t i = 0; i < values.size(); ++i)
      REQUIRE(std::abs(values[i] - want.at(name)[i]) <= largest * 16 * 0x1p-24);
  }
}

TEST_CASE("the parts of a step's samples that ranks take, padded, sum to the step") {
  const ModelConfig config = GENERATE(tiny_llama(), tiny_gpt2());
  RigOptions whole, part;
  whole.shape = {.batch = 3, .length = 16, .accumulate = 1, .recompute = Recompute::layer};
  part.shape = {.batch = 2, .length = 16, .accumulate = 1, .recompute = Recompute::layer, .samples = 3};
  const auto weights = weights_from_seed(config, 3);
  const auto joined = random_batches(config, whole.shape, 1);
  TrainingRig a(config, *weights, whole);
  const double want_loss = a.forward_backward(joined);
  a.finish();
  const Tensors want = a.plane("gradient");
  double loss = 0;
  Tensors sums;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {  // two samples, one, one and none
    const std::vector<std::uint64_t> starts = {0, 1, 2, 3, 3};
    std::vector<MicroBatch> mine(1);
    mine[0].inputs.assign(32, 7);
    mine[0].targets.assign(32, -1);
    for (std::size_t i = 0; i < 16 * (starts[rank + 1] - starts[rank]); ++i) {
      mine[0].inputs[i] = joined[0].inputs[16 * starts[rank] + i];
      mine[0].targets[i] = joined[0].targets[16 * starts[rank] + i];
    }
    TrainingRig b(config, *weights, part);
    loss += b.forward_backward(mine);
    REQUIRE(b.finish().finite);
    for (const auto& [name, values] : b.plane("gradient")) {
      std::vector<float>& sum = sums[name];
      sum.resize(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (rank == 3) REQUIRE(values[i] == 0);
        sum[i] += values[i];
      }
    }
  }
  CHECK(std::abs(loss - want_loss) <= 1e-7 * 6);
  for (const auto& [name, values] : want) {
    CAPTURE(name);
    double largest = 0;
    for (const float w : values) largest = std::max(largest, static_cast<double>(std::abs(w)));
    for (std::size_t i = 0; i < values.size(); ++i)
      REQUIRE(std::abs(values[i] - sums.at(name)[i]) <= largest * 16 * 0x1p-24);
  }
}

TEST_CASE("a dry run makes the accesses of a live run") {
  const ModelConfig config = GENERATE(tiny_llama(), tiny_gpt2());
  const Recompute recompute = GENERATE(Recompute::none, Recompute::layer);
  const std::uint64_t chunk_bytes = GENERATE(8192u, 1u << 20);
  RigOptions o;
  o.dtype = o.gradients = Dtype::bf16;
  o.chunk_bytes = chunk_bytes;
  o.shape = {.batch = 2, .length = 16, .accumulate = 2, .recompute = recompute};
  TrainingRig rig(config, *weights_from_seed(config, 3), o);
  // All of the vocabulary's rows would be needed to touch every piece: use ids that are spread evenly.
  auto batches = random_batches(config, o.shape, 1);
  for (MicroBatch& m : batches)
    for (std::size_t t = 0; t < m.inputs.size(); ++t) m.inputs[t] = static_cast<std::int32_t>(t * 199 / 31);
  rig.step(batches);
  rig.blocks().take_trace();
  rig.step(batches);
  const Trace live = rig.blocks().take_trace(), dry = dry_trace(config, o);
  REQUIRE(live.accesses.size() == dry.accesses.size());
  for (std::size_t i = 0; i < live.accesses.size(); ++i) {
    CAPTURE(i);
    REQUIRE(live.accesses[i].block == dry.accesses[i].block);
    REQUIRE(live.accesses[i].kind == dry.accesses[i].kind);
    REQUIRE(live.accesses[i].release_tick == dry.accesses[i].release_tick);
  }
  REQUIRE(live.workspace.size() == dry.workspace.size());
  for (std::size_t i = 0; i < live.workspace.size(); ++i) {
    CHECK(live.workspace[i].tick == dry.workspace[i].tick);
    CHECK(live.workspace[i].bytes == dry.workspace[i].bytes);
  }
  CHECK(live.workspace.back().bytes == 0);
  CHECK(live.backward_tick == dry.backward_tick);
  CHECK(live.backward_tick > 0);
  rig.settle();
}

TEST_CASE("an embedding pins only the pieces whose rows are read") {
  ModelConfig config = tiny_llama();
  config.tied = false;
  config.vocab = 208;
  RigOptions o;
  o.chunk_bytes = 4096;  // 16 rows: the table is 13 chunks of its own
  o.shape = {.batch = 1, .length = 8, .accumulate = 1, .recompute = Recompute::layer};
  TrainingRig rig(config, *weights_from_seed(config, 3), o);
  std::vector<MicroBatch> batches(1);
  batches[0].targets.assign(8, 0);
  batches[0].inputs = {0, 15, 16, 0, 207, 207, 16, 15};  // rows of chunks 0, 1 and the last
  rig.evaluate(batches[0]);
  const auto embedding = rig.layout().pieces(rig.layout().find("model.embed_tokens.weight"));
  REQUIRE(embedding.size() == 13);
  std::vector<int> pins(embedding.size());
  for (const Access& access : rig.blocks().take_trace().accesses)
    for (std::size_t i = 0; i < embedding.size(); ++i)
      pins[i] += access.block == rig.layout().block(embedding[i].chunk, 0);
  CHECK(pins == std::vector<int>{1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1});
}

TEST_CASE("many micro-batches go through embedding and head in groups") {
  // 131072 tokens of 64 features are half of a group's bytes: three micro-batches are two groups. In a dry run the
  // optimizer counts that every element has its contributions.
  const ModelConfig config = GENERATE(tiny_llama(), tiny_gpt2());
  RigOptions o;
  o.shape = {.batch = 2048, .length = 64, .accumulate = 3, .recompute = Recompute::layer};
  const Layout layout(model_params(config, {}), training_planes(Dtype::f32, Dtype::f32, true), 1 << 20);
  const Transformer transformer(config, layout, o.shape);
  const auto uses = transformer.contributions();
  const bool gpt2 = config.family == Family::gpt2;
  const auto of = [&](const char* gpt2_name, const char* name) {
    return uses[layout.find(gpt2 ? gpt2_name : name).value];
  };
  CHECK(of("transformer.wte.weight", "model.embed_tokens.weight") == 4);
  CHECK(of("transformer.ln_f.weight", "model.norm.weight") == 2);
  CHECK(of("transformer.h.1.ln_1.weight", "model.layers.1.mlp.up_proj.weight") == 3);
  CHECK_FALSE(dry_trace(config, o).accesses.empty());
}

TEST_CASE("samples longer than GPT-2's positions are refused") {
  const ModelConfig config = tiny_gpt2();
  const Layout layout(model_params(config, {}), training_planes(Dtype::f32, Dtype::f32, true), 1 << 20);
  CHECK_NOTHROW(Transformer(config, layout, {.batch = 1, .length = 64}));
  CHECK_THROWS_AS(Transformer(config, layout, {.batch = 1, .length = 65}), InputError);
}

TEST_CASE("a step of 4 × 512 tokens of llama-1b needs under 256 MiB beside blocks") {
  const ModelConfig config = named_model("llama-1b");
  const Layout layout(model_params(config, {}), training_planes(Dtype::bf16, Dtype::bf16, false), 4 << 20);
  const Transformer transformer(config, layout, {.batch = 4, .length = 512});
  CHECK(transformer.workspace_bytes() < 256 * MiB);
  CHECK(transformer.workspace_bytes() > 100 * MiB);
}

TEST_CASE("rotary tables") {
  RopeConfig rope;
  rope.theta = 10000;
  const RotaryTables plain(rope, 4, 3);  // frequencies 1 and 1/100
  const std::vector<float> angles = {0, 0, 1, 0.01f, 2, 0.02f};
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(plain.cos[i] == Approx(std::cos(angles[i])).epsilon(1e-6));
    CHECK(plain.sin[i] == Approx(std::sin(angles[i])).epsilon(1e-6));
  }
  rope.type = "linear";
  rope.factor = 4;
  CHECK(RotaryTables(rope, 4, 3).sin[2] == Approx(std::sin(0.25)).epsilon(1e-6));

  rope = {.type = "llama3",
          .theta = 500000,
          .factor = 8,
          .low_freq_factor = 1,
          .high_freq_factor = 4,
          .original_max_positions = 64};
  // Frequencies 500000^(-i/4): wavelengths 2π (kept, below 16), 167 (above 64: stretched) …
  const RotaryTables stretched(rope, 8, 2);
  CHECK(stretched.sin[4] == Approx(std::sin(1.0)).epsilon(1e-6));
  CHECK(stretched.sin[5] == Approx(std::sin(std::pow(500000.0, -0.25) / 8)).epsilon(1e-6));
  // … and one between 16 and 64: wavelength 2π·√(θ) with θ = 25 is 31.4; smooth = (64/31.4 − 1)/3.
  rope.theta = 25;
  const double wavelength = 2 * 3.14159265358979 * 5, smooth = (64 / wavelength - 1) / 3;
  CHECK(RotaryTables(rope, 4, 2).sin[3] == Approx(std::sin((1 - smooth) / 8 / 5 + smooth / 5)).epsilon(1e-6));
}

TEST_CASE("FLOPs of a step") {
  ModelConfig c = tiny_llama();
  c.layers = 1;
  // A token: projections 2·64·(64 + 2·32) + 2·64·64 = 24576, gate and up 24576, down 12288, attention (length 1)
  // 4·64 = 256, head 2·64·200 = 25600.
  const double none = 3 * (24576 + 24576 + 12288) + 256 * 3.5 + 3 * 25600;
  CHECK(step_flops(c, {.batch = 1, .length = 1, .accumulate = 1, .recompute = Recompute::none}) == none);
  CHECK(step_flops(c, {.batch = 3, .length = 1, .accumulate = 2, .recompute = Recompute::layer}) ==
        6 * (none + 24576 + 24576 + 256 + 25600));
}

}  // namespace transload::testing
