// Reading and writing safetensors, streamed: files are read with pread, never mapped. Peak memory: the header plus the
// caller's buffer.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "train/input_file.h"

namespace transload {

struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::f32;  ///< where `stored_as` is F32, BF16 or F16; others are refused when read
  std::string stored_as;     ///< the header's word: "F32", "I64", …
  std::vector<std::uint64_t> shape;
  std::string file;
  std::uint64_t file_begin = 0, file_end = 0;  ///< bytes, absolute
};

/// "F32", "BF16", …
const char* safetensors_name(Dtype dtype);

/// A model's weights: one file or a sharded set by its index.
class SafetensorsReader {
 public:
  /// `folder`: model.safetensors or model.safetensors.index.json; DamageError for headers that lie (length, overlapping
  /// or missing ranges, size that is not shape × dtype), shards or tensors that the index misses or has too many.
  static SafetensorsReader open_folder(const std::string& folder);
  static SafetensorsReader open_file(const std::string& path);
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  /// Elements [begin, begin + count) of a tensor, converted to fp32 (exact).
  void read(const TensorInfo& tensor, std::uint64_t begin, std::uint64_t count, float* to) const;

 private:
  void add_file(const std::string& path);
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::shared_ptr<const InputFile>> files_;  // by path
};

/// Writes one file: first all names, dtypes, shapes; then data in that order, in any pieces.
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    Dtype dtype;
    std::vector<std::uint64_t> shape;
  };
  SafetensorsWriter(const std::string& path, std::vector<Entry> entries, std::map<std::string, std::string> metadata);
  ~SafetensorsWriter();  ///< removes an unfinished file
  void append(const void* data, std::uint64_t bytes);
  /// fsync, rename from the temporary name; checks that all bytes came.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace transload
