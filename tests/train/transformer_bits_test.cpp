// Law 1 for the step code: chunks, frames, recomputation and streams never change a bit.
#include <catch2/catch.hpp>

#include "train/training_rig.h"

namespace transload::testing {
namespace {

ModelConfig small_model(Family family) {
  ModelConfig c;
  c.family = family;
  c.vocab = 300;
  c.hidden = 48;
  c.layers = 2;
  c.heads = 3;
  c.kv_heads = family == Family::gpt2 ? 3 : 1;
  c.head_dim = 16;
  c.intermediate = family == Family::gpt2 ? 192 : 100;
  c.max_positions = 64;
  c.tied = family != Family::llama;
  c.qkv_bias = family != Family::llama;
  c.out_bias = c.mlp_bias = family == Family::gpt2;
  if (family == Family::gpt2) c.activation = "gelu_new";
  return c;
}

/// Weights of several panels: the vocabulary (head and embedding) and the feed-forward layer.
ModelConfig wide_model(Family family) {
  ModelConfig c = small_model(family);
  c.layers = 1;
  c.vocab = 24000;
  c.intermediate = 24000;
  return c;
}

/// All that two runs of two steps leave, as bits.
struct Outcome {
  std::vector<double> losses, norms;
  Tensors weights, residues, moments;
};

Outcome two_steps(const ModelConfig& config, const RigOptions& options) {
  TrainingRig rig(config, *weights_from_seed(config, 7), options);
  Outcome out;
  for (std::uint64_t step = 0; step < 2; ++step) {
    out.losses.push_back(rig.forward_backward(random_batches(config, options.shape, step)));
    const Verdict verdict = rig.finish();
    REQUIRE(verdict.finite);
    out.norms.push_back(verdict.norm);
    rig.update(verdict);
  }
  rig.settle();
  out.weights = rig.plane("weight");
  out.moments = rig.plane("moment2");
  // One pin of weights, one each of gradient and partial, five while a chunk is updated.
  CHECK(rig.blocks().peak_held() <= 5);
  CHECK(rig.blocks().peak_workspace() <= rig.transformer().workspace_bytes());
  for (std::size_t b = 0; b < rig.transformer().kept_blocks().size(); ++b)
    CHECK_FALSE(rig.blocks().has_content(BlockId(rig.layout().blocks().size() + b)));
  return out;
}

void require_same_bits(const Tensors& a, const Tensors& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, values] : a) {
    CAPTURE(name);
    REQUIRE(values.size() == b.at(name).size());
    REQUIRE(std::memcmp(values.data(), b.at(name).data(), values.size() * sizeof(float)) == 0);
  }
}

void require_same_bits(const Outcome& a, const Outcome& b) {
  REQUIRE(std::memcmp(a.losses.data(), b.losses.data(), a.losses.size() * sizeof(double)) == 0);
  REQUIRE(std::memcmp(a.norms.data(), b.norms.data(), a.norms.size() * sizeof(double)) == 0);
  require_same_bits(a.moments, b.moments);
  require_same_bits(a.weights, b.weights);
}

RigOptions options_of(Dtype dtype) {
  RigOptions o{.dtype = dtype, .gradients = dtype};
  o.shape = {.batch = 2, .length = 33, .accumulate = 2, .recompute = Recompute::layer};
  return o;
}

}  // namespace

TEST_CASE("chunks, frames, recomputation and streams do not change a bit") {
  const Family family = GENERATE(Family::gpt2, Family::llama, Family::qwen2);
  const Dtype dtype = GENERATE(Dtype::f32, Dtype::bf16);
  CAPTURE(static_cast<int>(family), name_of(dtype));
  const ModelConfig config = small_model(family);
  const Outcome plain = two_steps(config, options_of(dtype));

  SECTION("chunks of a tile, scattered") {
    RigOptions o = options_of(dtype);
    o.chunk_bytes = 4096;
    o.placement = Placement::scattered;
    require_same_bits(two_steps(config, o), plain);
  }
  SECTION("chunks that cut rows, nothing recomputed") {
    RigOptions o = options_of(dtype);
    o.chunk_bytes = 20000;
    o.shape.recompute = Recompute::none;
    require_same_bits(two_steps(config, o), plain);
  }
  SECTION("streams of their own, scattered") {
    RigOptions o = options_of(dtype);
    o.chunk_bytes = 32768;
    o.placement = Placement::scattered;
    o.queues = true;
    require_same_bits(two_steps(config, o), plain);
  }
  SECTION("streams of their own, nothing recomputed, one chunk") {
    RigOptions o = options_of(dtype);
    o.chunk_bytes = 64 << 20;
    o.shape.recompute = Recompute::none;
    o.queues = true;
    require_same_bits(two_steps(config, o), plain);
  }
}

TEST_CASE("panels that straddle chunks and frames do not change a bit") {
  const Family family = GENERATE(Family::gpt2, Family::llama);
  CAPTURE(static_cast<int>(family));
  const ModelConfig config = wide_model(family);
  RigOptions o = options_of(Dtype::bf16);
  o.shape = {.batch = 1, .length = 9, .accumulate = 2, .recompute = Recompute::layer};
  o.chunk_bytes = 64 << 20;
  const Outcome plain = two_steps(config, o);
  o.chunk_bytes = 300000;
  o.placement = Placement::scattered;
  require_same_bits(two_steps(config, o), plain);
}

TEST_CASE("kept logits of several panels and blocks of tokens do not change a bit") {
  ModelConfig config = small_model(Family::llama);
  config.layers = 1;
  config.vocab = 24000;
  RigOptions o = options_of(Dtype::bf16);
  o.shape = {.batch = 4, .length = 33, .accumulate = 2, .recompute = Recompute::layer};  // one group of 264 tokens
  o.chunk_bytes = 64 << 20;
  const Outcome made_again = two_steps(config, o);
  o.shape.recompute = Recompute::none;
  require_same_bits(two_steps(config, o), made_again);
  o.chunk_bytes = 300000;
  o.placement = Placement::scattered;
  require_same_bits(two_steps(config, o), made_again);
}

TEST_CASE("evaluation is the forward of training and leaves nothing behind") {
  const Family family = GENERATE(Family::gpt2, Family::llama, Family::qwen2);
  const Recompute recompute = GENERATE(Recompute::none, Recompute::layer);
  const ModelConfig config = small_model(family);
  RigOptions o = options_of(Dtype::bf16);
  o.shape.accumulate = 1;
  o.shape.recompute = recompute;
  TrainingRig rig(config, *weights_from_seed(config, 7), o);
  const auto batches = random_batches(config, o.shape, 3);
  rig.step(batches);  // so that an update is pending: evaluation sees it applied
  const double sum = rig.evaluate(batches[0]);
  for (std::size_t b = 0; b < rig.transformer().kept_blocks().size(); ++b)
    CHECK_FALSE(rig.blocks().has_content(BlockId(rig.layout().blocks().size() + b)));
  const double mean = rig.step(batches);
  CHECK(sum / static_cast<double>(o.shape.batch * o.shape.length) == mean);
  rig.settle();
}

TEST_CASE("freezing changes nothing above and moves nothing frozen") {
  const ModelConfig config = small_model(Family::llama);
  const RigOptions free = options_of(Dtype::f32);
  RigOptions frozen = free;
  SECTION("the embedding and a layer") { frozen.freeze = {"model.embed_tokens.*", "model.layers.0.*"}; }
  SECTION("norms") { frozen.freeze = {"*norm*"}; }
  SECTION("the head") { frozen.freeze = {"lm_head.weight"}; }
  const auto weights = weights_from_seed(config, 7);
  TrainingRig a(config, *weights, free), b(config, *weights, frozen);
  const auto batches = random_batches(config, free.shape, 0);
  const Tensors before = b.plane("weight");
  CHECK(a.forward_backward(batches) == b.forward_backward(batches));
  const Verdict va = a.finish(), vb = b.finish();
  const Tensors want = a.plane("gradient"), got = b.plane("gradient");
  for (const auto& [name, values] : got)
    if (!b.layout().param(b.layout().find(name)).frozen) CHECK(values == want.at(name));
  a.update(va);
  b.update(vb);
  a.settle();
  b.settle();
  for (const auto& [name, values] : b.plane("weight")) {
    CAPTURE(name);
    CHECK((values == before.at(name)) == b.layout().param(b.layout().find(name)).frozen);
  }
}

}  // namespace transload::testing
