#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/error.h"
#include "train/safetensors.h"

namespace transload {

struct SafetensorsWriter::Impl {
  std::string path, temporary;
  int fd = -1;
  std::uint64_t written = 0, total = 0;

  [[noreturn]] void fail(const char* operation, std::uint64_t wanted, std::uint64_t got) const {
    const int error = errno;
    throw IoError({.operation = operation,
                   .path = temporary,
                   .block = {},
                   .offset = written,
                   .wanted = wanted,
                   .got = got,
                   .error = error,
                   .advice = error == ENOSPC ? "Free space on the disk, or write elsewhere." : ""});
  }
  void write(const void* data, std::uint64_t bytes) {
    for (std::uint64_t done = 0; done < bytes;) {
      const ssize_t n = ::write(fd, static_cast<const char*>(data) + done, bytes - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("write", bytes, done);
      done += static_cast<std::uint64_t>(n);
      written += static_cast<std::uint64_t>(n);
    }
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
  impl_->temporary = path + ".unfinished";
  impl_->total = 8 + header_bytes + data_bytes;
  impl_->fd = ::open(impl_->temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (impl_->fd < 0) impl_->fail("open", 0, 0);
  impl_->write(&header_bytes, 8);
  impl_->write(header.data(), header_bytes);
}

SafetensorsWriter::~SafetensorsWriter() {
  if (impl_->fd < 0) return;
  ::close(impl_->fd);
  ::unlink(impl_->temporary.c_str());
}

void SafetensorsWriter::append(const void* data, std::uint64_t bytes) {
  TRANSLOAD_CHECK(bytes <= impl_->total - impl_->written, "{} bytes more than the {} of {}", bytes, impl_->total,
                  impl_->path);
  impl_->write(data, bytes);
}

void SafetensorsWriter::finish() {
  TRANSLOAD_CHECK(impl_->written == impl_->total, "{} of {} bytes of {}", impl_->written, impl_->total, impl_->path);
  if (::fsync(impl_->fd) != 0) impl_->fail("fsync", 0, 0);
  if (::rename(impl_->temporary.c_str(), impl_->path.c_str()) != 0) impl_->fail("rename", 0, 0);
  ::close(impl_->fd);
  impl_->fd = -1;
}

}  // namespace transload
