// The communicator between GPUs: NCCL moves blocks of device memory, issued to the CUDA stream that a call names; the
// control plane, the heartbeats and NCCL's id are a host communicator's.
//
// Sums: NCCL's own reductions do not promise an order. So every rank sends each other one its piece (grouped send and
// receive: the bytes of a ring), and the pieces are summed here by a kernel in the fixed tree. Reduction::library uses
// NCCL's own: less memory, and bits that depend on the topology and on NCCL's choice of algorithm; note() says so.
// Blocks whose frames are not neighbours pass through contiguous device buffers, in pieces of bounded size.
//
// A lost rank: NCCL's work in flight is aborted, so that no stream hangs; what it would have written is undefined, and
// the next call of either plane throws RankLostError. So before anything is kept for good, exchange (agree) first.
// Threading: as Communicator; blocks of the data plane are device memory.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/launch.h"
#include "offload/cuda/cuda_stream.h"

namespace transload::cuda {

/// kernels/cuda's tree_sum: out[elements] ← sum of `count` pieces, `stride` elements apart. In device memory.
using DeviceTreeSum = void (*)(const std::byte* pieces, std::uint64_t stride, int count, std::byte* out,
                               std::uint64_t elements, Dtype type, cudaStream_t stream);

struct NcclOptions {
  CommOptions comm;
  int device = 0;  ///< ordinal of this rank's, as device_of says
  DeviceTreeSum sum = nullptr;
};

/// All ranks call it. memory_bytes() is device memory; the host part's buffers (under 1 MiB a rank) are not in it.
std::unique_ptr<Communicator> make_nccl_communicator(const Launch& launch, const NcclOptions& options);

/// The device of a rank: its local rank among the visible ones. InputError where there are fewer.
int device_of(const Place& place, int visible_devices);

}  // namespace transload::cuda
