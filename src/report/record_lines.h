// The lines of a record, read as a stream: one piece of the file and one line are in memory, however long the file is.
//
// A line longer than kMostLine is passed over and said so; a last line without its end is what a killed process leaves.
// Threading and ownership: one thread; the view given is good until the next call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/os.h"

namespace transload::report {

class RecordLines {
 public:
  static constexpr std::size_t kPiece = std::size_t{1} << 20;
  static constexpr std::size_t kMostLine = std::size_t{32} << 20;

  enum class Found { line, too_long, torn, end };

  /// IoError where it cannot be opened or read.
  explicit RecordLines(const std::string& path);

  Found next(std::string_view& line);
  std::uint64_t number() const { return number_; }  ///< of the last line, from 1
  std::uint64_t bytes() const { return offset_; }   ///< read so far

 private:
  bool read_piece();
  Found last_line(std::string_view& line);
  os::File file_;
  std::vector<char> piece_;
  std::size_t begin_ = 0, end_ = 0;  // of what is unread in piece_
  std::string carried_;              // the beginning of a line that goes on in the next piece
  bool carried_used_ = false;        // carried_ was given out
  bool skipping_ = false;            // inside a line that is too long
  std::uint64_t offset_ = 0, number_ = 0;
};

}  // namespace transload::report
