#include "chunk/layout.h"

#include <catch2/catch.hpp>
#include <random>

#include "base/error.h"
#include "base/size.h"

namespace transload {
namespace {

std::vector<PlaneSpec> bf16_planes() { return training_planes(Dtype::bf16, Dtype::bf16, false); }

void check_params(const Layout& layout) {
  for (std::size_t p = 0; p < layout.params().size(); ++p) {
    std::uint64_t next = 0;
    for (const Piece& piece : layout.pieces(ParamId(p))) {
      REQUIRE(piece.param == ParamId(p));
      REQUIRE(piece.param_begin == next);
      REQUIRE(piece.param_begin % kTile == 0);
      REQUIRE(piece.chunk_begin % kRun == 0);
      REQUIRE(piece.count > 0);
      REQUIRE(layout.chunk(piece.chunk).frozen == layout.param(ParamId(p)).frozen);
      next += piece.count;
    }
    REQUIRE(next == layout.param(ParamId(p)).elements());
  }
}

void check_chunks(const Layout& layout) {
  const std::uint64_t weight = size_of(layout.weight_dtype());
  std::size_t pieces = 0, pieces_of_params = 0;
  for (std::size_t c = 0; c < layout.chunks().size(); ++c) {
    const Chunk& chunk = layout.chunks()[c];
    REQUIRE(chunk.elements > 0);
    REQUIRE(chunk.elements % kRun == 0);
    REQUIRE(chunk.elements * weight <= layout.chunk_bytes());
    std::uint64_t end = 0;
    for (const Piece& piece : chunk.pieces) {
      REQUIRE(piece.chunk == ChunkId(c));
      REQUIRE(piece.chunk_begin == round_up(end, kRun));  // disjoint, ascending, nothing but alignment between
      end = piece.chunk_begin + piece.count;
      ++pieces;
    }
    REQUIRE(chunk.elements == round_up(end, kRun));
  }
  for (std::size_t p = 0; p < layout.params().size(); ++p) pieces_of_params += layout.pieces(ParamId(p)).size();
  REQUIRE(pieces == pieces_of_params);
}

void check_blocks(const Layout& layout) {
  std::size_t next = 0;
  for (std::size_t c = 0; c < layout.chunks().size(); ++c) {
    for (std::size_t q = 0; q < layout.planes().size(); ++q) {
      const PlaneSpec& plane = layout.planes()[q];
      const BlockId id = layout.block(ChunkId(c), static_cast<int>(q));
      REQUIRE(id.valid() == (!layout.chunks()[c].frozen || plane.for_frozen));
      if (!id.valid()) continue;
      REQUIRE(id == BlockId(next++));
      REQUIRE(layout.chunk_of(id) == ChunkId(c));
      REQUIRE(layout.plane_of(id) == static_cast<int>(q));
      const BlockSpec& spec = layout.blocks()[id.value];
      const std::uint64_t elements = layout.shard_elements(ChunkId(c)) * (plane.whole ? layout.shards().count : 1);
      REQUIRE(spec.bytes == elements * size_of(plane.dtype));
      REQUIRE(spec.durable == plane.durable);
      REQUIRE(spec.plane == plane.name);
    }
    REQUIRE_FALSE(layout.block(ChunkId(c), -1).valid());
  }
  REQUIRE(next == layout.blocks().size());
}

void check_layout(const Layout& layout) {
  check_params(layout);
  check_chunks(layout);
  check_blocks(layout);
}

bool same(const Layout& a, const Layout& b) {
  if (a.to_json() != b.to_json() || a.chunks().size() != b.chunks().size()) return false;
  for (std::size_t c = 0; c < a.chunks().size(); ++c) {
    const Chunk &x = a.chunks()[c], &y = b.chunks()[c];
    if (x.elements != y.elements || x.frozen != y.frozen || x.pieces.size() != y.pieces.size()) return false;
    for (std::size_t i = 0; i < x.pieces.size(); ++i)
      if (x.pieces[i].param != y.pieces[i].param || x.pieces[i].param_begin != y.pieces[i].param_begin ||
          x.pieces[i].chunk_begin != y.pieces[i].chunk_begin || x.pieces[i].count != y.pieces[i].count)
        return false;
  }
  return true;
}

}  // namespace

TEST_CASE("parameters of awkward sizes lie in exactly one piece each") {
  const std::vector<std::uint64_t> sizes = {0, 1, 127, 128, 129, 1023, 1024, 1025, 4096, 4097, 10'000};
  for (const std::uint64_t chunk_bytes : {2048ull, 2304ull, 4096ull, 6000ull, 262144ull}) {
    std::vector<ParamSpec> params;
    for (const std::uint64_t n : sizes) params.push_back({"p" + std::to_string(n), {n}, false});
    check_layout(Layout(params, bf16_planes(), chunk_bytes));
  }
}

TEST_CASE("no parameters and empty parameters make no chunk") {
  REQUIRE(Layout({}, bf16_planes(), 262144).blocks().empty());
  const Layout layout({{"empty", {0, 7}, false}, {"scalar", {}, false}}, bf16_planes(), 262144);
  check_layout(layout);
  REQUIRE(layout.pieces(ParamId(0)).empty());
  REQUIRE(layout.param(ParamId(0)).columns() == 0);
  REQUIRE(layout.pieces(ParamId(1)).size() == 1);
  REQUIRE(layout.chunks().size() == 1);
  REQUIRE(layout.chunks()[0].elements == kRun);
}

TEST_CASE("random parameters, frozen ones among them") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<ParamSpec> params;
    const std::size_t count = random() % 30;
    for (std::size_t p = 0; p < count; ++p)
      params.push_back({"p" + std::to_string(p), {random() % 40, random() % 200}, random() % 3 == 0});
    const bool wide = random() % 2 == 0;
    const std::uint64_t chunk_bytes = kTile * 4 + random() % 60'000;
    const Layout layout(params, training_planes(wide ? Dtype::f32 : Dtype::bf16, Dtype::bf16, true), chunk_bytes);
    check_layout(layout);
    REQUIRE(same(layout, Layout::from_json(layout.to_json())));
  }
}

TEST_CASE("the shards of all ranks have each element of each parameter once, cut on runs") {
  std::mt19937_64 random(11);
  for (std::uint32_t count : {1u, 2u, 3u, 4u, 5u, 8u, 61u}) {
    std::vector<ParamSpec> params = {{"one", {1}, false}, {"few", {count - 1}, false}, {"frozen", {77, 3}, true}};
    for (std::size_t p = 0; p < 12; ++p) params.push_back({"p" + std::to_string(p), {random() % 9000}, p % 5 == 0});
    const std::uint64_t chunk_bytes = kTile * 2 + random() % 30'000;
    std::vector<std::uint64_t> next(params.size());
    std::vector<std::vector<Piece>> by_chunk;
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      const Layout layout(params, training_planes(Dtype::bf16, Dtype::bf16, true, true), chunk_bytes, {rank, count});
      check_layout(layout);
      REQUIRE(same(layout, Layout::from_json(layout.to_json())));
      by_chunk.resize(layout.chunks().size());
      for (std::size_t c = 0; c < layout.chunks().size(); ++c) {
        const std::uint64_t size = layout.shard_elements(ChunkId(c));
        REQUIRE(size % kRun == 0);
        REQUIRE(size * count >= layout.chunks()[c].elements);
        REQUIRE(size < layout.chunks()[c].elements / count + 1 + kRun);
        for (const Piece& piece : layout.shard_pieces(ChunkId(c))) {
          REQUIRE(piece.count > 0);
          REQUIRE(piece.param_begin % kRun == 0);
          REQUIRE(piece.chunk_begin % kRun == 0);
          REQUIRE(piece.chunk_begin + piece.count <= size);
          by_chunk[c].push_back(piece);
        }
      }
    }
    // Chunk by chunk, ranks ascending, a parameter's elements come in order.
    for (const auto& pieces : by_chunk)
      for (const Piece& piece : pieces) {
        REQUIRE(piece.param_begin == next[piece.param.value]);
        next[piece.param.value] += piece.count;
      }
    for (std::size_t p = 0; p < params.size(); ++p) REQUIRE(next[p] == params[p].elements());
  }
}

TEST_CASE("one rank's shard is the chunk, and a rank that is none is refused") {
  const Layout layout({{"a", {300}, false}, {"b", {5000}, false}}, bf16_planes(), 4096);
  for (std::size_t c = 0; c < layout.chunks().size(); ++c) {
    const auto shard = layout.shard_pieces(ChunkId(c));
    const auto& pieces = layout.chunks()[c].pieces;
    REQUIRE(layout.shard_elements(ChunkId(c)) == layout.chunks()[c].elements);
    REQUIRE(shard.size() == pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      REQUIRE(shard[i].param == pieces[i].param);
      REQUIRE(shard[i].param_begin == pieces[i].param_begin);
      REQUIRE(shard[i].chunk_begin == pieces[i].chunk_begin);
      REQUIRE(shard[i].count == pieces[i].count);
    }
  }
  REQUIRE_THROWS_AS(Layout({}, bf16_planes(), 4096, Shards{2, 2}), InputError);
}

TEST_CASE("a frozen parameter between trainable ones does not end their chunk") {
  const Layout layout({{"a", {100}, false}, {"b", {100}, true}, {"c", {100}, false}}, bf16_planes(), 262144);
  check_layout(layout);
  REQUIRE(layout.chunks().size() == 2);
  REQUIRE(layout.chunks()[0].pieces.size() == 2);
}

TEST_CASE("huge parameters take 64-bit arithmetic and no memory of their own") {
  const std::uint64_t rows = 3'000'000'000, columns = 300;  // 9·10¹¹ elements
  const Layout layout({{"huge", {rows, columns}, false}}, bf16_planes(), 64 * MiB);
  check_layout(layout);
  REQUIRE(layout.chunks().size() == ceil_div(rows * columns, 32 * MiB));
  REQUIRE(layout.param(ParamId(0)).rows() == rows);
  REQUIRE(layout.param(ParamId(0)).columns() == columns);
  REQUIRE_THROWS_AS(Layout({{"more", {rows, rows}, false}}, bf16_planes(), 64 * MiB), InputError);
  REQUIRE_THROWS_AS(Layout({{"many", {std::uint64_t{1} << 55}, false}}, bf16_planes(), 256 * KiB), InputError);
}

TEST_CASE("bad layouts are refused") {
  REQUIRE_THROWS_AS(Layout({{"a", {1}, false}, {"a", {2}, false}}, bf16_planes(), 262144), InputError);
  REQUIRE_THROWS_AS(Layout({}, bf16_planes(), 2047), InputError);
  REQUIRE_NOTHROW(Layout({}, bf16_planes(), 2048));
  REQUIRE_THROWS_AS(Layout({}, training_planes(Dtype::f32, Dtype::f32, false), 4095), InputError);
  const Layout layout({{"a", {1}, false}}, bf16_planes(), 262144);
  REQUIRE(layout.find("a") == ParamId(0));
  REQUIRE_THROWS_AS(layout.find("b"), InputError);
  for (const char* text : {"", "{", "[]", "{}", R"({"chunk_bytes":4096,"params":[],"planes":[{"name":"w"}]})",
                           R"({"chunk_bytes":4096,"params":[{"name":"a","shape":[-1],"frozen":1}],"planes":[]})"})
    REQUIRE_THROWS_AS(Layout::from_json(text), InputError);
}

TEST_CASE("planes of training") {
  const auto names = [](const std::vector<PlaneSpec>& planes) {
    std::string text;
    for (const PlaneSpec& p : planes) text += p.name + (p.durable ? "+ " : " ");
    return text;
  };
  REQUIRE(names(training_planes(Dtype::bf16, Dtype::bf16, true)) ==
          "weight+ residue+ moment1+ moment2+ gradient partial ");
  REQUIRE(names(training_planes(Dtype::f32, Dtype::f32, false)) == "weight+ moment1+ moment2+ gradient ");
  const Layout layout({{"a", {1}, true}}, bf16_planes(), 262144);
  REQUIRE_FALSE(layout.block(ChunkId(0), layout.plane("moment1")).valid());
  REQUIRE_FALSE(layout.block(ChunkId(0), layout.plane("gradient")).valid());
  REQUIRE(layout.block(ChunkId(0), layout.plane("weight")).valid());
  REQUIRE(layout.plane("partial") == -1);
}

TEST_CASE("frames are powers of two between 4 KiB and 256 KiB, about an eighth of a chunk") {
  REQUIRE(frame_bytes_for(4 * KiB) == 4 * KiB);
  REQUIRE(frame_bytes_for(64 * KiB) == 8 * KiB);
  REQUIRE(frame_bytes_for(256 * KiB) == 32 * KiB);
  REQUIRE(frame_bytes_for(2 * MiB) == 256 * KiB);
  REQUIRE(frame_bytes_for(64 * MiB) == 256 * KiB);
}

}  // namespace transload
