// The stream of token ids: sample k is stream[k·L : (k+1)·L + 1]. Files are read with pread, never mapped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace transload {

enum class Order : std::uint8_t { shuffled, sequential };

class TokenFile {
 public:
  /// `.bin`: uint16 ids, uint32 where vocab > 65536 (the nanoGPT convention); anything else: UTF-8 text by bytes.
  /// Text with vocab > 512 needs allow_bytes (--bytes). InputError: missing, empty, odd size.
  TokenFile(const std::string& path, std::int64_t vocab, bool allow_bytes);
  ~TokenFile();
  std::uint64_t tokens() const;
  bool is_text() const;
  /// ids[count] from position `first`; InputError with the position in the file for an id ≥ vocab.
  void read(std::uint64_t first, std::uint64_t count, std::int32_t* ids) const;
  /// Size and sampled xxh3: the identity that resume checks.
  std::string identity() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Which samples a step takes: a function of seed and sample number alone, so that a resumed run sees the same.
class SampleOrder {
 public:
  /// InputError when the file is shorter than one sample (`what` it is, tokens, needed).
  SampleOrder(std::uint64_t tokens, std::int64_t length, Order order, std::uint64_t seed,
              const std::string& what = "The data");
  std::uint64_t samples() const { return samples_; }
  /// The sample that position n (0, 1, 2, …, over epochs) takes. Shuffled: a permutation a epoch, by a keyed bijection
  /// (no table).
  std::uint64_t sample(std::uint64_t n) const;

 private:
  std::uint64_t samples_;
  Order order_;
  std::uint64_t seed_;
};

/// One micro-batch: inputs and targets, [batch × length]. A target below 0 is none.
struct MicroBatch {
  std::vector<std::int32_t> inputs, targets;
};

}  // namespace transload
