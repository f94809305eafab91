#include "cuda_waits/keeps.h"

#include <array>
#include <atomic>

namespace cuda_waits {
namespace {
constexpr std::size_t kMostSites = 256;
std::atomic<int> left_out{-1};
std::array<std::atomic<bool>, kMostSites> reached{};
}  // namespace

bool keeps(int site) {
  reached.at(static_cast<std::size_t>(site)) = true;
  return site != left_out;
}
void leave_out(int site) { left_out = site; }
bool was_reached(int site) { return reached.at(static_cast<std::size_t>(site)); }

}  // namespace cuda_waits
