#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/error.h"
#include "base/os.h"
#include "base/size.h"
#include "train/safetensors.h"

namespace transload {

struct SafetensorsWriter::Impl {
  std::string path;
  os::File file;  // under a temporary name; closed once it has its own
  std::uint64_t written = 0, total = 0;

  [[noreturn]] void fail(const char* operation, std::int64_t result) const {
    throw IoError({operation, file.path(), "", 0, 0, 0, static_cast<int>(-result), ""});
  }
  void write(const void* data, std::uint64_t bytes) {
    try {
      file.write_or_throw(data, bytes, written);
    } catch (const IoError& error) {
      IoError::Details details = error.details();
      os::Space space;
      if (details.error == ENOSPC && os::space_of(file.path(), &space) == 0)
        details.advice = fmt::format("The whole file takes {} and {} are free. Free space, or write elsewhere.",
                                     format_size(total), format_size(space.free_bytes));
      throw IoError(details);
    }
    written += bytes;
  }
};

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<Entry> entries,
                                     std::map<std::string, std::string> metadata)
    : impl_(std::make_unique<Impl>()) {
  nlohmann::ordered_json json;
  if (!metadata.empty()) json["__metadata__"] = metadata;
  std::uint64_t data_bytes = 0;
  for (const Entry& entry : entries) {
    std::uint64_t bytes = size_of(entry.dtype);
    for (const std::uint64_t size : entry.shape) bytes *= size;
    TRANSLOAD_CHECK(!json.contains(entry.name), "tensor {} is written twice", entry.name);
    json[entry.name] = {{"dtype", safetensors_name(entry.dtype)},
                        {"shape", entry.shape},
                        {"data_offsets", {data_bytes, data_bytes + bytes}}};
    data_bytes += bytes;
  }
  std::string header = json.is_null() ? "{}" : json.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');  // readers map the file and want aligned data
  const std::uint64_t header_bytes = header.size();

  impl_->path = path;
  impl_->total = 8 + header_bytes + data_bytes;
  impl_->file = os::File::open_or_throw(path + ".unfinished", O_WRONLY | O_CREAT | O_TRUNC);
  try {
    impl_->write(&header_bytes, 8);
    impl_->write(header.data(), header_bytes);
  } catch (...) {
    os::remove(impl_->file.path());
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (impl_->file.is_open()) os::remove(impl_->file.path());
}

void SafetensorsWriter::append(const void* data, std::uint64_t bytes) {
  TRANSLOAD_CHECK(bytes <= impl_->total - impl_->written, "{} bytes more than the {} of {}", bytes, impl_->total,
                  impl_->path);
  impl_->write(data, bytes);
}

void SafetensorsWriter::finish() {
  TRANSLOAD_CHECK(impl_->written == impl_->total, "{} of {} bytes of {}", impl_->written, impl_->total, impl_->path);
  if (const std::int64_t result = impl_->file.sync_all(); result < 0) impl_->fail("fsync", result);
  if (const std::int64_t result = os::rename(impl_->file.path(), impl_->path); result < 0)
    impl_->fail("rename", result);
  impl_->file.close();
}

}  // namespace transload
