#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.h"
#include "comm/cuda/nccl_table.h"

namespace transload::cuda {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

template <class Function>
void take(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) throw Error(fmt::format("{} has no function {}.", kLibrary, name));
}

Nccl load() {
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw Error(
        fmt::format("Several GPUs need NCCL: {}. Install it, or name its folder in LD_LIBRARY_PATH.", ::dlerror()));
  Nccl t;
  take(library, "ncclGetUniqueId", t.get_unique_id);
  take(library, "ncclCommInitRank", t.init_rank);
  take(library, "ncclCommDestroy", t.destroy);
  take(library, "ncclCommAbort", t.abort);
  take(library, "ncclCommGetAsyncError", t.async_error);
  take(library, "ncclGetErrorString", t.error_string);
  take(library, "ncclGroupStart", t.group_start);
  take(library, "ncclGroupEnd", t.group_end);
  take(library, "ncclSend", t.send);
  take(library, "ncclRecv", t.receive);
  take(library, "ncclAllGather", t.all_gather);
  take(library, "ncclReduceScatter", t.reduce_scatter);
  take(library, "ncclBroadcast", t.broadcast);
  return t;
}

}  // namespace

const Nccl& nccl() {
  static const Nccl table = load();  // stays loaded
  return table;
}

}  // namespace transload::cuda
