// The function table over the stand-in.
#include "comm/cuda/nccl_table.h"

namespace transload::cuda {

const Nccl& nccl() {
  static const Nccl table = {.get_unique_id = &::ncclGetUniqueId,
                             .init_rank = &::ncclCommInitRank,
                             .destroy = &::ncclCommDestroy,
                             .abort = &::ncclCommAbort,
                             .async_error = &::ncclCommGetAsyncError,
                             .error_string = &::ncclGetErrorString,
                             .group_start = &::ncclGroupStart,
                             .group_end = &::ncclGroupEnd,
                             .send = &::ncclSend,
                             .receive = &::ncclRecv,
                             .all_gather = &::ncclAllGather,
                             .reduce_scatter = &::ncclReduceScatter,
                             .broadcast = &::ncclBroadcast};
  return table;
}

}  // namespace transload::cuda
