// One line of a record as keys and values, in place and without copies. The lines that come by the million (accesses,
// spans, waits, memory) are flat objects of numbers, true, false and plain texts; all others are left to a JSON parser.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace transload::report {

class FlatLine {
 public:
  static constexpr int kMostFields = 24;

  /// False where the line is anything but such an object: nested, with escapes, with more fields, or garbled.
  bool parse(std::string_view line);

  /// Views into the line. Nothing where the key is not there or its value is of another kind.
  std::optional<std::string_view> text(std::string_view key) const;
  std::optional<std::int64_t> whole(std::string_view key) const;
  std::optional<bool> truth(std::string_view key) const;
  /// Calls use(key, number) for each whole number.
  template <class Use>
  void each_whole(const Use& use) const {
    for (int i = 0; i < count_; ++i)
      if (const auto number = whole_of(fields_[static_cast<std::size_t>(i)]))
        use(fields_[static_cast<std::size_t>(i)].key, *number);
  }

 private:
  struct Field {
    std::string_view key, value;
    bool quoted = false;
  };
  static std::optional<std::int64_t> whole_of(const Field& field);
  const Field* find(std::string_view key) const;
  std::array<Field, kMostFields> fields_;
  int count_ = 0;
  mutable int next_ = 0;  // keys are asked for in the order in which they are written
};

}  // namespace transload::report
