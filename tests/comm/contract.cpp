#include "comm/contract.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/size.h"

namespace transload::testing {
namespace {

/// Bytes in frames of 4 KiB of which some are neighbours and most are not; what lies outside the view is watched.
class Block {
 public:
  static constexpr std::uint64_t kFrame = 4 * KiB;
  explicit Block(std::uint64_t bytes, std::uint64_t seed = 1) : bytes_(bytes) {
    const std::uint64_t frames = ceil_div(bytes, kFrame) + 3;
    memory_.assign(frames * kFrame, std::byte{0xEE});
    std::vector<std::uint32_t> order(frames);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i + 1 < order.size(); ++i)
      if (random() % 4 != 0) std::swap(order[i], order[i + random() % (order.size() - i)]);
    next_.assign(frames, UINT32_MAX);
    for (std::size_t i = 0; i + 1 < order.size(); ++i) next_[order[i]] = order[i + 1];
    first_ = order[0];
    table_ = {memory_.data(), kFrame, next_.data()};
  }
  Block(const Block&) = delete;
  BlockView view() const { return {&table_, first_, bytes_}; }
  std::vector<std::byte> content() const {
    std::vector<std::byte> all(bytes_);
    if (bytes_ > 0) view().copy_out(all.data(), 0, bytes_);
    return all;
  }
  void fill(const std::vector<std::byte>& content) const {
    if (bytes_ > 0) view().copy_in(content.data(), 0, bytes_);
  }
  bool outside_is_untouched() const {
    const auto untouched = static_cast<std::uint64_t>(std::count(memory_.begin(), memory_.end(), std::byte{0xEE}));
    return untouched >= memory_.size() - bytes_;
  }

 private:
  std::uint64_t bytes_;
  std::vector<std::byte> memory_;
  std::vector<std::uint32_t> next_;
  std::uint32_t first_ = 0;
  FrameTable table_;
};

void expect(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

std::vector<std::byte> bytes_of(int rank, std::uint64_t bytes, std::uint64_t salt) {
  std::vector<std::byte> content(bytes);
  for (std::uint64_t i = 0; i < bytes; ++i)
    content[i] = static_cast<std::byte>(scramble(static_cast<std::uint64_t>(rank) + 1, salt, i / 8) >> (i % 8 * 8));
  return content;
}

/// An element of rank `rank`'s summand: ordinary ones, and infinities, NaNs, denormals and zeros of both signs.
std::uint32_t bits_of(int rank, std::uint64_t at, std::uint64_t salt) {
  const std::uint64_t dice = scramble(static_cast<std::uint64_t>(rank) + 17, salt, at);
  constexpr std::uint32_t kSpecial[] = {0x7F800000, 0xFF800000, 0x7FC12345, 0xFFA00001, 0x00000001, 0x80012345,
                                        0x00000000, 0x80000000, 0x7F7FFFFF, 0x007F0000, 0x3F808000, 0x3F818000};
  if (scramble(at, salt) % 16 == 0) return kSpecial[dice % std::size(kSpecial)];
  const std::uint32_t exponent = 110 + static_cast<std::uint32_t>(dice >> 40) % 30;
  return (static_cast<std::uint32_t>(dice) & 0x807FFFFFu) | exponent << 23;
}

std::vector<std::byte> summand(int rank, std::uint64_t elements, Dtype type, std::uint64_t salt) {
  std::vector<std::byte> content(elements * size_of(type));
  for (std::uint64_t i = 0; i < elements; ++i) {
    const std::uint32_t bits = bits_of(rank, i, salt);
    const auto high = static_cast<std::uint16_t>(bits >> 16);
    if (type == Dtype::f32)
      std::memcpy(content.data() + i * 4, &bits, 4);
    else
      std::memcpy(content.data() + i * 2, &high, 2);
  }
  return content;
}

// The tree as its definition reads (tree_sum.h).
float tree(int first, int count, std::uint64_t at, Dtype type, std::uint64_t salt) {
  if (count == 1) {
    const std::uint32_t bits = bits_of(first, at, salt);
    return std::bit_cast<float>(type == Dtype::f32 ? bits : bits & 0xFFFF0000u);
  }
  const int half = static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1)));
  return tree(first, half, at, type, salt) + tree(first + half, count - half, at, type, salt);
}

// A sum of one rank is its bytes.
std::vector<std::byte> expected_sum(int rank, int size, std::uint64_t elements, Dtype type, std::uint64_t salt) {
  if (size == 1) return summand(0, elements, type, salt);
  std::vector<std::byte> sums(elements * size_of(type));
  for (std::uint64_t i = 0; i < elements; ++i) {
    const float sum = tree(0, size, static_cast<std::uint64_t>(rank) * elements + i, type, salt);
    const std::uint32_t whole = std::isnan(sum) ? 0x7FC00000u : std::bit_cast<std::uint32_t>(sum);
    const bf16 rounded = round_to_bf16(sum);
    if (type == Dtype::f32)
      std::memcpy(sums.data() + i * 4, &whole, 4);
    else
      std::memcpy(sums.data() + i * 2, &rounded, 2);
  }
  return sums;
}

// Around the frame, around the pieces that blocks are cut into (up to 1 MiB), and far beyond.
std::vector<std::uint64_t> sizes_in_bytes(const Communicator& c) {
  const std::uint64_t piece = 1 * MiB / static_cast<std::uint64_t>(c.size());
  return {0, 1, 2, 3, 63, 64, 65, 4096, 4097, 10'000, piece - 64, piece + 4, 1 * MiB - 64, 1 * MiB + 1, 2 * MiB + 4100};
}
std::vector<std::uint64_t> sizes_in_elements(const Communicator& c) {
  const std::uint64_t part = 256 * KiB / static_cast<std::uint64_t>(c.size());
  return {0, 1, 3, 128, 511, 513, 2048, 2049, 5000, part - 17, part - 16, part, part + 1, 3 * part + 7};
}

void gathers(Communicator& c) {
  InlineStream stream;
  const auto size = static_cast<std::uint64_t>(c.size());
  for (const std::uint64_t bytes : sizes_in_bytes(c)) {
    const Block in(bytes, 5), out(bytes * size, 6);
    in.fill(bytes_of(c.rank(), bytes, bytes));
    c.all_gather(in.view(), out.view(), stream);
    std::vector<std::byte> all;
    for (int r = 0; r < c.size(); ++r) {
      const std::vector<std::byte> one = bytes_of(r, bytes, bytes);
      all.insert(all.end(), one.begin(), one.end());
    }
    expect(out.content() == all, fmt::format("a gather of {} bytes a rank differs", bytes));
    expect(out.outside_is_untouched() && in.content() == bytes_of(c.rank(), bytes, bytes), "a gather wrote elsewhere");
  }
}

void gathers_in_place(Communicator& c) {
  InlineStream stream;
  const auto size = static_cast<std::uint64_t>(c.size());
  const std::uint64_t bytes = 1 * MiB + 4096;
  std::vector<std::byte> all(bytes * size), wanted;
  std::byte* const own = all.data() + static_cast<std::uint64_t>(c.rank()) * bytes;
  const std::vector<std::byte> mine = bytes_of(c.rank(), bytes, 3);
  std::copy(mine.begin(), mine.end(), own);
  c.all_gather({own, bytes}, {all.data(), all.size()}, stream);
  for (int r = 0; r < c.size(); ++r) {
    const std::vector<std::byte> one = bytes_of(r, bytes, 3);
    wanted.insert(wanted.end(), one.begin(), one.end());
  }
  expect(all == wanted, "a gather in place differs");
}

void sums(Communicator& c) {
  InlineStream stream;
  const auto size = static_cast<std::uint64_t>(c.size());
  for (const Dtype type : {Dtype::f32, Dtype::bf16})
    for (const std::uint64_t elements : sizes_in_elements(c)) {
      const std::vector<std::byte> mine = summand(c.rank(), elements * size, type, elements);
      const Block in(mine.size(), 7), out(elements * size_of(type), 8);
      in.fill(mine);
      c.reduce_scatter(in.view(), out.view(), type, stream);
      expect(out.content() == expected_sum(c.rank(), c.size(), elements, type, elements),
             fmt::format("the sum of {} elements of {} differs", elements, name_of(type)));
      expect(out.outside_is_untouched() && in.content() == mine, "a sum wrote elsewhere");
    }
}

void sums_in_place(Communicator& c) {
  InlineStream stream;
  const std::uint64_t elements = 300'001;
  std::vector<std::byte> mine = summand(c.rank(), elements * static_cast<std::uint64_t>(c.size()), Dtype::bf16, 9);
  const BlockView out(mine.data() + static_cast<std::uint64_t>(c.rank()) * elements * 2, elements * 2);
  c.reduce_scatter({mine.data(), mine.size()}, out, Dtype::bf16, stream);
  std::vector<std::byte> got(elements * 2);
  out.copy_out(got.data(), 0, got.size());
  expect(got == expected_sum(c.rank(), c.size(), elements, Dtype::bf16, 9), "a sum in place differs");
}

void broadcasts(Communicator& c) {
  InlineStream stream;
  for (int root = 0; root < c.size(); ++root)
    for (const std::uint64_t bytes : {0ul, 1ul, 4097ul, 1 * MiB + 5}) {
      const Block data(bytes, 9);
      data.fill(bytes_of(c.rank(), bytes, 4));
      c.broadcast(data.view(), root, stream);
      expect(data.content() == bytes_of(root, bytes, 4), fmt::format("a broadcast of {} bytes differs", bytes));
      expect(data.outside_is_untouched(), "a broadcast wrote elsewhere");
    }
}

void exchanges(Communicator& c) {
  for (const std::uint64_t bytes : {0ul, 1ul, 7ul, 1000ul, 64 * KiB, 200'001ul}) {
    const std::vector<std::byte> mine = bytes_of(c.rank(), bytes, 11);
    std::vector<std::byte> all(bytes * static_cast<std::uint64_t>(c.size())), wanted;
    c.exchange(mine, all);
    for (int r = 0; r < c.size(); ++r) {
      const std::vector<std::byte> one = bytes_of(r, bytes, 11);
      wanted.insert(wanted.end(), one.begin(), one.end());
    }
    expect(all == wanted, fmt::format("an exchange of {} bytes differs", bytes));
  }
}

void small_talk(Communicator& c) {
  const auto text = [](int r) { return std::string(static_cast<std::size_t>(r * 1000), static_cast<char>('a' + r)); };
  const std::vector<std::string> texts = c.all_gather_strings(text(c.rank()));
  expect(texts.size() == static_cast<std::size_t>(c.size()), "texts are missing");
  for (int r = 0; r < c.size(); ++r) expect(texts[static_cast<std::size_t>(r)] == text(r), "a text differs");
  expect(c.broadcast_string("from " + std::to_string(c.rank()), c.size() - 1) == fmt::format("from {}", c.size() - 1),
         "a text that was sent to all differs");
  std::int64_t values[] = {c.rank() + 1, -7, std::int64_t{1} << 50};
  c.sum(values);
  expect(
      values[0] == c.size() * (c.size() + 1) / 2 && values[1] == -7 * c.size() && values[2] == c.size() * (1ll << 50),
      "a sum of integers differs");
  expect(c.agree(true) && !c.agree(c.rank() != c.size() - 1), "an agreement is none");
  c.barrier();
}

// The control plane's thread and the data plane's stream at once.
void both_planes(Communicator& c) {
  QueueStream stream(16);
  const std::uint64_t bytes = 700'000;
  const auto size = static_cast<std::uint64_t>(c.size());
  const Block in(bytes, 2), out(bytes * size, 3);
  in.fill(bytes_of(c.rank(), bytes, 1));
  for (int i = 0; i < 6; ++i) {
    stream.launch([&] { c.all_gather(in.view(), out.view(), stream); });
    std::int64_t one = i + c.rank();
    c.sum({&one, 1});
    expect(one == i * c.size() + c.size() * (c.size() - 1) / 2, "a sum beside a gather differs");
  }
  stream.synchronize();
  const std::vector<std::byte> all = out.content();
  for (int r = 0; r < c.size(); ++r) {
    const std::vector<std::byte> one = bytes_of(r, bytes, 1);
    expect(std::equal(one.begin(), one.end(), all.begin() + static_cast<std::ptrdiff_t>(bytes) * r),
           "a gather differs");
  }
}

constexpr std::uint64_t kHashed[] = {1, 1000, 4099, 70'000};

std::uint64_t add_to_hash(std::uint64_t hash, const std::vector<std::byte>& content) {
  for (const std::byte one : content) hash = (hash ^ static_cast<std::uint64_t>(one)) * 0x100000001b3;
  return hash;
}

}  // namespace

std::uint64_t scramble(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15 + b * 0xC2B2AE3D27D4EB4F + c * 0x165667B19E3779F9 + 1;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

const std::vector<Clause>& contract() {
  static const std::vector<Clause> clauses{{"gathers", gathers},
                                           {"gathers in place", gathers_in_place},
                                           {"sums", sums},
                                           {"sums in place", sums_in_place},
                                           {"broadcasts", broadcasts},
                                           {"exchanges", exchanges},
                                           {"small talk", small_talk},
                                           {"both planes at once", both_planes}};
  return clauses;
}

std::uint64_t hash_of_sums(Communicator& c, std::uint64_t seed) {
  InlineStream stream;
  std::mt19937_64 random(seed * 1000 + static_cast<std::uint64_t>(c.rank()));
  std::uint64_t hash = 0;
  for (const Dtype type : {Dtype::f32, Dtype::bf16})
    for (const std::uint64_t elements : kHashed) {
      std::vector<std::byte> in = summand(c.rank(), elements * static_cast<std::uint64_t>(c.size()), type, 77);
      std::vector<std::byte> out(elements * size_of(type));
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      c.reduce_scatter({in.data(), in.size()}, {out.data(), out.size()}, type, stream);
      hash = add_to_hash(hash, out);
    }
  return hash;
}

std::uint64_t reference_hash_of_sums(int rank, int size) {
  std::uint64_t hash = 0;
  for (const Dtype type : {Dtype::f32, Dtype::bf16})
    for (const std::uint64_t elements : kHashed) hash = add_to_hash(hash, expected_sum(rank, size, elements, type, 77));
  return hash;
}

}  // namespace transload::testing
