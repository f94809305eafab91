#include "report/events.h"

#include <algorithm>

namespace transload::report {

void StepEvents::clear() {
  accesses.clear();
  spans.clear();
  waits.clear();
  memory.clear();
  names.resize(1);
  step = 0;
  left_out = 0;
}

std::uint16_t StepEvents::name_id(std::string_view name) {
  constexpr std::size_t kMostNames = 256;
  const auto known = std::find(names.begin() + 1, names.end(), name);
  if (known != names.end()) return static_cast<std::uint16_t>(known - names.begin());
  if (names.size() == kMostNames) return 0;
  names.emplace_back(name);
  return static_cast<std::uint16_t>(names.size() - 1);
}

const Header::Field* Header::find(std::string_view path) const {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.path == path; });
  return found == fields.end() ? nullptr : &*found;
}

double Header::number(std::string_view path) const {
  const Field* field = find(path);
  return field == nullptr ? 0 : field->number;
}

std::string Header::text(std::string_view path) const {
  const Field* field = find(path);
  return field == nullptr ? "" : field->text;
}

}  // namespace transload::report
