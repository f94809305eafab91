#include "train/data.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "base/error.h"
#include "base/size.h"
#include "temp_folder.h"
#include "train/inputs.h"

using namespace transload;
using Catch::Matchers::Contains;

namespace {

template <class T>
std::string bytes_of(const std::vector<T>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(T)};
}

std::vector<std::int32_t> read(const TokenFile& file, std::uint64_t first, std::uint64_t count) {
  std::vector<std::int32_t> ids(count, -1);
  file.read(first, count, ids.data());
  return ids;
}

}  // namespace

TEST_CASE("Text is read by bytes", "[data]") {
  const TempFolder folder;
  const std::string path = folder.write("text.txt", "a\xc3\xa9\xffz");
  const TokenFile file(path, 256, false);
  CHECK(file.is_text());
  CHECK(file.tokens() == 5);
  CHECK(read(file, 0, 5) == std::vector<std::int32_t>{'a', 0xc3, 0xa9, 0xff, 'z'});
  CHECK(read(file, 4, 1) == std::vector<std::int32_t>{'z'});
  CHECK(read(file, 5, 0).empty());
  CHECK_NOTHROW(TokenFile(path, 512, false));
  CHECK_THAT(MESSAGE_OF(InputError, TokenFile(path, 513, false)), Contains("--bytes"));
  CHECK_NOTHROW(TokenFile(path, 513, true));
  CHECK_THAT(MESSAGE_OF(InputError, read(TokenFile(path, 255, false), 0, 5)), Contains("token 3") && Contains("255"));
}

TEST_CASE("Ids are two or four bytes, by the vocabulary", "[data]") {
  const TempFolder folder;
  std::vector<std::uint16_t> ids(40000);
  std::iota(ids.begin(), ids.end(), std::uint16_t{0});
  const std::string path = folder.write("ids.bin", bytes_of(ids));
  const TokenFile file(path, 65536, false);
  CHECK_FALSE(file.is_text());
  CHECK(file.tokens() == 40000);
  const std::vector<std::int32_t> all = read(file, 0, 40000);  // more than is read at once
  for (std::int32_t i = 0; i < 40000; ++i)
    if (all[static_cast<std::size_t>(i)] != i) FAIL("token " << i);
  CHECK(TokenFile(path, 65537, false).tokens() == 20000);

  const std::vector<std::uint32_t> wide = {7, 151935, 4000000000u};
  const TokenFile file32(folder.write("wide.bin", bytes_of(wide)), 151936, false);
  CHECK(read(file32, 0, 2) == std::vector<std::int32_t>{7, 151935});
  CHECK_THAT(MESSAGE_OF(InputError, read(file32, 1, 2)),
             Contains("token 2") && Contains("byte 8") && Contains("4000000000") && Contains("151936"));
  CHECK_THAT(MESSAGE_OF(InputError, read(TokenFile(path, 30000, false), 29999, 2)), Contains("token 30000"));
}

TEST_CASE("Files of llm.c have a header", "[data]") {
  const TempFolder folder;
  std::vector<std::uint32_t> header(256, 0);
  header[0] = 20240520, header[1] = 1, header[2] = 3;
  const std::string head = bytes_of(header), ids = bytes_of(std::vector<std::uint16_t>{5, 6, 7});
  const TokenFile file(folder.write("a.bin", head + ids), 50257, false);
  CHECK(read(file, 0, 3) == std::vector<std::int32_t>{5, 6, 7});
  CHECK_THAT(MESSAGE_OF(InputError, TokenFile(folder.write("b.bin", head + ids + ids), 50257, false)),
             Contains("3 ids"));
}

TEST_CASE("Files that cannot be data are refused", "[data]") {
  const TempFolder folder;
  CHECK_THAT(MESSAGE_OF(InputError, TokenFile(folder.path("none"), 256, false)), Contains("none"));
  CHECK_THAT(MESSAGE_OF(InputError, TokenFile(folder.path(), 256, false)), Contains("not a regular file"));
  CHECK_THAT(MESSAGE_OF(InputError, TokenFile(folder.write("e.txt", ""), 256, false)), Contains("empty"));
  CHECK_THAT(MESSAGE_OF(InputError, TokenFile(folder.write("e.bin", ""), 256, false)), Contains("empty"));
  CHECK_THAT(MESSAGE_OF(InputError, TokenFile(folder.write("o.bin", "abc"), 256, false)), Contains("uint16"));
  CHECK_THAT(MESSAGE_OF(InputError, TokenFile(folder.write("o.bin", "abcdef"), 70000, false)), Contains("uint32"));
}

TEST_CASE("The identity of data changes with size and content", "[data]") {
  const TempFolder folder;
  std::string text(10'000'000, 'x');
  const auto identity = [&] { return TokenFile(folder.write("t", text), 256, false).identity(); };
  const std::string first = identity();
  CHECK(identity() == first);
  CHECK_THAT(first, Contains("10000000 bytes"));
  text.front() = 'y';
  CHECK(identity() != first);
  text.front() = 'x';
  text.back() = 'y';
  CHECK(identity() != first);
  // A small file is hashed in full.
  text = std::string(200'001, 'x');
  const std::string small = identity();
  for (std::size_t i = 0; i < text.size(); i += 9973) {
    text[i] = 'y';
    CHECK(identity() != small);
    text[i] = 'x';
  }
  CHECK(identity() == small);
}

TEST_CASE("Samples cover the stream, one more token at the end", "[data]") {
  for (const auto& [tokens, length, samples] :
       std::vector<std::array<std::int64_t, 3>>{{33, 32, 1}, {64, 32, 1}, {65, 32, 2}, {2, 1, 1}, {321, 32, 10}}) {
    const SampleOrder order(static_cast<std::uint64_t>(tokens), length, Order::sequential, 1);
    CHECK(order.samples() == static_cast<std::uint64_t>(samples));
    CHECK(order.sample(order.samples() + 1) == 1 % order.samples());
  }
  CHECK_THAT(MESSAGE_OF(InputError, SampleOrder(32, 32, Order::shuffled, 1)), Contains("32 tokens") && Contains("33"));
  CHECK_THROWS_AS(SampleOrder(32, 0, Order::shuffled, 1), InputError);
}

TEST_CASE("Ranks take a step's samples between them, and pad what is missing of a micro-batch", "[data]") {
  for (const std::uint64_t samples : {0, 1, 2, 3, 7, 8, 64})
    for (const std::uint32_t ranks : {1u, 2u, 3u, 4u, 5u, 8u}) {
      std::uint64_t next = 0;
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        const SampleRun run = samples_of(samples, rank, ranks);
        REQUIRE(run.first == next);
        REQUIRE(run.count <= ceil_div(samples, ranks));
        next += run.count;
      }
      REQUIRE(next == samples);
    }
  const TempFolder folder;
  const TokenFile file(folder.write("text", "abcdefghij"), 256, false);
  const SampleOrder order(file.tokens(), 3, Order::sequential, 1);
  std::vector<MicroBatch> batches(2);
  for (int again = 0; again < 2; ++again) read_batches(file, order, 1, 3, {.batch = 2, .length = 3}, batches);
  CHECK(batches[0].inputs == std::vector<std::int32_t>{'d', 'e', 'f', 'g', 'h', 'i'});
  CHECK(batches[0].targets == std::vector<std::int32_t>{'e', 'f', 'g', 'h', 'i', 'j'});
  CHECK(batches[1].inputs == std::vector<std::int32_t>{'a', 'b', 'c', 0, 0, 0});
  CHECK(batches[1].targets == std::vector<std::int32_t>{'b', 'c', 'd', -1, -1, -1});
}

TEST_CASE("Every epoch is a permutation of its own", "[data]") {
  std::vector<std::uint64_t> sizes(130);
  std::iota(sizes.begin(), sizes.end(), std::uint64_t{1});
  for (const std::uint64_t size : {255, 256, 257, 1023, 1024, 1025, 4097, 65535, 65536, 65537, 300000})
    sizes.push_back(size);
  for (const std::uint64_t size : sizes) {
    const SampleOrder order(size + 1, 1, Order::shuffled, 42);
    REQUIRE(order.samples() == size);
    for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
      std::vector<bool> seen(size);
      for (std::uint64_t n = 0; n < size; ++n) {
        const std::uint64_t sample = order.sample(epoch * size + n);
        REQUIRE(sample < size);
        if (seen[sample]) FAIL("sample " << sample << " of " << size << " comes twice");
        seen[sample] = true;
      }
    }
  }
}

TEST_CASE("The order looks random and depends on seed and epoch", "[data]") {
  constexpr std::uint64_t kSize = 100000;
  const SampleOrder a(kSize + 1, 1, Order::shuffled, 1), b(kSize + 1, 1, Order::shuffled, 2);
  std::uint64_t same_seed = 0, same_epoch = 0, fixed = 0;
  double product = 0;
  for (std::uint64_t n = 0; n < kSize; ++n) {
    same_seed += a.sample(n) == b.sample(n);
    same_epoch += a.sample(n) == a.sample(n + kSize);
    fixed += a.sample(n) == n;
    const double x = static_cast<double>(n) / kSize - 0.5, y = static_cast<double>(a.sample(n)) / kSize - 0.5;
    product += x * y;
  }
  // Each count is Poisson with mean 1; the correlation has a deviation of 1/√n = 0.003.
  CHECK(same_seed < 10);
  CHECK(same_epoch < 10);
  CHECK(fixed < 10);
  CHECK(std::abs(product * 12 / kSize) < 0.02);
  // A stream of 2⁴⁰ tokens needs no table.
  const SampleOrder huge(std::uint64_t{1} << 40, 1, Order::shuffled, 1);
  CHECK(huge.sample(123456789) < huge.samples());
}
