#include "report/flat_line.h"

#include <charconv>
#include <cstring>

namespace transload::report {

namespace {

/// Walks over a line; every step says whether the line is still what it should be.
class Cursor {
 public:
  explicit Cursor(std::string_view line) : at_(line.data()), end_(line.data() + line.size()) {}

  bool take(char c) {
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  bool at(char c) const { return at_ != end_ && *at_ == c; }
  bool done() const { return at_ == end_; }

  /// A text in quotes without escapes.
  bool quoted(std::string_view& text) {
    if (!take('"')) return false;
    const auto* quote = static_cast<const char*>(std::memchr(at_, '"', static_cast<std::size_t>(end_ - at_)));
    if (quote == nullptr) return false;
    text = {at_, static_cast<std::size_t>(quote - at_)};
    at_ = quote + 1;
    return text.find('\\') == std::string_view::npos;
  }

  /// A number, true, false or null.
  bool bare(std::string_view& text) {
    const char* const begin = at_;
    while (at_ != end_ && (std::memchr("+-.", *at_, 3) != nullptr || alphanumeric(*at_))) ++at_;
    text = {begin, static_cast<std::size_t>(at_ - begin)};
    return !text.empty();
  }

 private:
  static bool alphanumeric(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == 'E'; }
  const char* at_;
  const char* end_;
};

}  // namespace

bool FlatLine::parse(std::string_view line) {
  count_ = 0;
  next_ = 0;
  Cursor cursor(line);
  if (!cursor.take('{')) return false;
  do {
    if (count_ == kMostFields) return false;
    Field& field = fields_[static_cast<std::size_t>(count_++)];
    if (!cursor.quoted(field.key) || !cursor.take(':')) return false;
    field.quoted = cursor.at('"');
    if (field.quoted ? !cursor.quoted(field.value) : !cursor.bare(field.value)) return false;
  } while (cursor.take(','));
  return cursor.take('}') && cursor.done();
}

const FlatLine::Field* FlatLine::find(std::string_view key) const {
  for (int tried = 0; tried < count_; ++tried) {
    const Field& field = fields_[static_cast<std::size_t>(next_)];
    next_ = next_ + 1 == count_ ? 0 : next_ + 1;
    if (field.key == key) return &field;
  }
  return nullptr;
}

std::optional<std::string_view> FlatLine::text(std::string_view key) const {
  const Field* field = find(key);
  if (field == nullptr || !field->quoted) return std::nullopt;
  return field->value;
}

std::optional<std::int64_t> FlatLine::whole_of(const Field& field) {
  if (field.quoted) return std::nullopt;
  std::int64_t number = 0;
  const char* const end = field.value.data() + field.value.size();
  const auto [stopped, error] = std::from_chars(field.value.data(), end, number);
  if (error != std::errc{} || stopped != end) return std::nullopt;
  return number;
}

std::optional<std::int64_t> FlatLine::whole(std::string_view key) const {
  const Field* field = find(key);
  return field == nullptr ? std::nullopt : whole_of(*field);
}

std::optional<bool> FlatLine::truth(std::string_view key) const {
  const Field* field = find(key);
  if (field == nullptr || field->quoted) return std::nullopt;
  if (field->value == "true") return true;
  if (field->value == "false") return false;
  return std::nullopt;
}

}  // namespace transload::report
