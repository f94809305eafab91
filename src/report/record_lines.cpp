#include "report/record_lines.h"

#include <fcntl.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace transload::report {

RecordLines::RecordLines(const std::string& path) : file_(os::File::open_or_throw(path, O_RDONLY)), piece_(kPiece) {}

bool RecordLines::read_piece() {
  os::Retry retry;
  std::int64_t got = 0;
  do {
    const iovec to{piece_.data(), piece_.size()};
    got = file_.read({&to, 1}, offset_);
  } while (got < 0 && retry.again(got));
  if (got < 0)
    throw IoError({.operation = "read",
                   .path = file_.path(),
                   .block = {},
                   .offset = offset_,
                   .wanted = piece_.size(),
                   .error = static_cast<int>(-got)});
  begin_ = 0;
  end_ = static_cast<std::size_t>(got);
  offset_ += end_;
  return got > 0;
}

RecordLines::Found RecordLines::last_line(std::string_view& line) {
  const bool anything = skipping_ || !carried_.empty();
  skipping_ = false;
  if (!anything) return Found::end;
  ++number_;
  line = carried_;
  carried_used_ = true;
  return Found::torn;
}

RecordLines::Found RecordLines::next(std::string_view& line) {
  if (carried_used_) carried_.clear();
  carried_used_ = false;
  for (;;) {
    if (begin_ == end_ && !read_piece()) return last_line(line);
    const char* const from = piece_.data() + begin_;
    const std::size_t left = end_ - begin_;
    const auto* newline = static_cast<const char*>(std::memchr(from, '\n', left));
    const std::size_t length = newline == nullptr ? left : static_cast<std::size_t>(newline - from);
    begin_ += length + (newline == nullptr ? 0 : 1);
    const bool whole_here = newline != nullptr && carried_.empty() && !skipping_;
    if (!whole_here && !skipping_) carried_.append(from, length);
    if (carried_.size() > kMostLine) {
      skipping_ = true;
      carried_.clear();
    }
    if (newline == nullptr) continue;
    ++number_;
    if (skipping_) {
      skipping_ = false;
      return Found::too_long;
    }
    line = whole_here ? std::string_view(from, length) : std::string_view(carried_);
    carried_used_ = !whole_here;
    return Found::line;
  }
}

}  // namespace transload::report
