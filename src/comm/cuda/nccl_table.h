// NCCL's functions, loaded when first needed: a program starts without NCCL, and says what is missing when it is asked
// for. The tests give another table (tests/cuda_stand_in).
#pragma once

#include <nccl.h>

namespace transload::cuda {

struct Nccl {
  decltype(&::ncclGetUniqueId) get_unique_id;
  decltype(&::ncclCommInitRank) init_rank;
  decltype(&::ncclCommDestroy) destroy;
  decltype(&::ncclCommAbort) abort;
  decltype(&::ncclCommGetAsyncError) async_error;
  decltype(&::ncclGetErrorString) error_string;
  decltype(&::ncclGroupStart) group_start;
  decltype(&::ncclGroupEnd) group_end;
  decltype(&::ncclSend) send;
  decltype(&::ncclRecv) receive;
  decltype(&::ncclAllGather) all_gather;
  decltype(&::ncclReduceScatter) reduce_scatter;
  decltype(&::ncclBroadcast) broadcast;
};

/// Error where the library is not there.
const Nccl& nccl();

}  // namespace transload::cuda
