#include "base/library.h"
#include "comm/cuda/nccl_table.h"

namespace transload::cuda {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

Nccl load() {
  const Library library(kLibrary, "Several GPUs need NCCL");
  Nccl t;
  library.take("ncclGetUniqueId", t.get_unique_id);
  library.take("ncclCommInitRank", t.init_rank);
  library.take("ncclCommDestroy", t.destroy);
  library.take("ncclCommAbort", t.abort);
  library.take("ncclCommGetAsyncError", t.async_error);
  library.take("ncclGetErrorString", t.error_string);
  library.take("ncclGroupStart", t.group_start);
  library.take("ncclGroupEnd", t.group_end);
  library.take("ncclSend", t.send);
  library.take("ncclRecv", t.receive);
  library.take("ncclAllGather", t.all_gather);
  library.take("ncclReduceScatter", t.reduce_scatter);
  library.take("ncclBroadcast", t.broadcast);
  return t;
}

}  // namespace

const Nccl& nccl() {
  static const Nccl table = load();  // stays loaded
  return table;
}

}  // namespace transload::cuda
