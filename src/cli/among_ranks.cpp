#include "cli/among_ranks.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "cli/commands.h"
#include "train/accelerator.h"

namespace transload::cli {

int among_ranks(const Launch& launch, const TrainOptions& options, const std::function<int(Communicator&)>& work,
                const std::function<const char*(const RankLostError&)>& lost) {
  const auto connect =
      options.device == DeviceKind::cuda && launch.place.size > 1 ? connect_accelerators : make_communicator;
  const std::unique_ptr<Communicator> communicator =
      connect(launch, {.largest_bytes = UINT64_MAX / 2,
                       .timeout = std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_s * 1e3)),
                       .reduction = options.reduction});
  try {
    return work(*communicator);
  } catch (const RankLostError& error) {
    // Nobody can be waited for any more, at exit neither (comm/communicator.h).
    fmt::print(stderr, "transload: rank {}: {}{}\n", communicator->rank(), error.what(), lost(error));
    std::fflush(nullptr);
    std::_Exit(kFailed);
  } catch (const std::exception& error) {
    communicator->fail(error.what());
    throw;
  }
}

}  // namespace transload::cli
