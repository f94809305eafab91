#include "train/data.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "train/input_file.h"

namespace transload {
namespace {

/// The header of llm.c's files: 256 numbers, of which the first three say format, version and the number of ids.
constexpr std::uint64_t kLlmcHeaderBytes = 1024;
constexpr std::uint32_t kLlmcUint16 = 20240520, kLlmcUint32 = 20240801;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

struct TokenFile::Impl {
  InputFile file;
  std::int64_t vocab;
  bool text;
  std::uint64_t header_bytes = 0, id_bytes = 1, count = 0;
  std::string identity;  // asked for at each commit

  Impl(const std::string& path, std::int64_t vocab_size)
      : file(path), vocab(vocab_size), text(!ends_with(path, ".bin")) {
    if (!text) {
      id_bytes = vocab > 65536 ? 4 : 2;
      read_llmc_header();
      if ((file.size() - header_bytes) % id_bytes != 0)
        throw InputError(
            fmt::format("{} has {} bytes, which is no multiple of {}: a .bin file holds uint{} ids for a "
                        "vocabulary of {}.",
                        path, file.size(), id_bytes, 8 * id_bytes, vocab));
    }
    count = (file.size() - header_bytes) / id_bytes;
    if (count == 0) throw InputError(fmt::format("{} is empty.", path));
    identity = fmt::format("{} bytes, xxh3 {:016x}", file.size(), file.sampled_hash());
  }

  void read_llmc_header() {
    std::array<std::uint32_t, 3> head = {};
    if (file.size() < kLlmcHeaderBytes) return;
    file.read(0, head.data(), sizeof head);
    std::uint64_t bytes = 0;
    if (head[0] == kLlmcUint16 && head[1] == 1) bytes = 2;
    if (head[0] == kLlmcUint32 && head[1] == 7) bytes = 4;
    if (bytes == 0) return;
    if (file.size() != kLlmcHeaderBytes + bytes * head[2])
      throw InputError(fmt::format("{} says in its header that it has {} ids of {} bytes, but the file has {} bytes.",
                                   file.path(), head[2], bytes, file.size()));
    header_bytes = kLlmcHeaderBytes;
    id_bytes = bytes;
  }

  /// Widens n raw ids; refuses one beyond the vocabulary.
  template <class T>
  void widen(const unsigned char* raw, std::uint64_t first, std::uint64_t n, std::int32_t* ids) const {
    for (std::uint64_t i = 0; i < n; ++i) {
      T id;
      std::memcpy(&id, raw + i * sizeof(T), sizeof(T));
      if (static_cast<std::int64_t>(id) >= vocab)
        throw InputError(fmt::format("{}: token {} (at byte {}) is {}, but the model's vocabulary has {} ids.",
                                     file.path(), first + i, header_bytes + (first + i) * id_bytes, id, vocab));
      ids[i] = static_cast<std::int32_t>(id);
    }
  }
};

TokenFile::TokenFile(const std::string& path, std::int64_t vocab, bool allow_bytes)
    : impl_(std::make_unique<Impl>(path, vocab)) {
  if (impl_->text && vocab > 512 && !allow_bytes)
    throw InputError(
        fmt::format("{} is read as text, a token a byte, but the model has a vocabulary of {}: bytes are "
                    "not what it was made for. Make a .bin file with its tokenizer (scripts/tokenize.py), "
                    "or say --bytes if bytes are meant.",
                    path, vocab));
}
TokenFile::~TokenFile() = default;

std::uint64_t TokenFile::tokens() const { return impl_->count; }
bool TokenFile::is_text() const { return impl_->text; }

void TokenFile::read(std::uint64_t first, std::uint64_t count, std::int32_t* ids) const {
  TRANSLOAD_CHECK(first <= tokens() && count <= tokens() - first, "tokens {} + {} of {}", first, count, tokens());
  std::array<unsigned char, 16384> raw;
  const std::uint64_t at_once = raw.size() / impl_->id_bytes;
  while (count > 0) {
    const std::uint64_t n = std::min(count, at_once);
    impl_->file.read(impl_->header_bytes + first * impl_->id_bytes, raw.data(), n * impl_->id_bytes);
    if (impl_->id_bytes == 1) impl_->widen<std::uint8_t>(raw.data(), first, n, ids);
    if (impl_->id_bytes == 2) impl_->widen<std::uint16_t>(raw.data(), first, n, ids);
    if (impl_->id_bytes == 4) impl_->widen<std::uint32_t>(raw.data(), first, n, ids);
    first += n;
    ids += n;
    count -= n;
  }
}

std::string TokenFile::identity() const { return impl_->identity; }

namespace {

/// A keyed bijection of [0, size): a Feistel network over the least even number of bits that hold size, walked along
/// its cycles until it is back inside (fewer than four rounds on average).
class Shuffle {
 public:
  Shuffle(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch) : size_(size) {
    const std::uint64_t words[2] = {seed, epoch};
    key_ = XXH3_64bits(words, sizeof words);
    while (half_bits_ < 32 && (size - 1) >> (2 * half_bits_) != 0) ++half_bits_;
    mask_ = (std::uint64_t{1} << half_bits_) - 1;
  }
  std::uint64_t operator()(std::uint64_t x) const {
    do {
      x = permute(x);
    } while (x >= size_);
    return x;
  }

 private:
  std::uint64_t permute(std::uint64_t x) const {
    std::uint64_t left = x >> half_bits_, right = x & mask_;
    for (std::uint64_t round = 0; round < 8; ++round) {
      const std::uint64_t words[2] = {round, right};
      left ^= XXH3_64bits_withSeed(words, sizeof words, key_) & mask_;
      std::swap(left, right);
    }
    return left << half_bits_ | right;
  }
  std::uint64_t size_, key_, mask_ = 0;
  int half_bits_ = 1;
};

}  // namespace

SampleOrder::SampleOrder(std::uint64_t tokens, std::int64_t length, Order order, std::uint64_t seed,
                         const std::string& what)
    : samples_(0), order_(order), seed_(seed) {
  if (length < 1) throw InputError(fmt::format("A sequence length of {} is too small: at least 1.", length));
  const auto needed = static_cast<std::uint64_t>(length) + 1;
  if (tokens < needed)
    throw InputError(
        fmt::format("{} has {} token{}, but one sample of sequence length {} needs {}. Give more text, or a shorter "
                    "--sequence-length.",
                    what, tokens, tokens == 1 ? "" : "s", length, needed));
  samples_ = (tokens - 1) / static_cast<std::uint64_t>(length);
}

std::uint64_t SampleOrder::sample(std::uint64_t n) const {
  if (order_ == Order::sequential) return n % samples_;
  return Shuffle(samples_, seed_, n / samples_)(n % samples_);
}

}  // namespace transload
