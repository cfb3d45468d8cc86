// The part of NCCL's C interface that Neap uses. It is declared here so that a build needs neither
// NCCL's header nor the CUDA toolkit. The numbers are stable since NCCL 2.10.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace neap::parallel {

using NcclComm = struct ncclComm*;
using CudaStream = struct CUstream_st*;
constexpr int kNcclSuccess = 0, kNcclInProgress = 7;
constexpr std::size_t kNcclIdBytes = 128;
struct NcclId {
  char bytes[kNcclIdBytes];
};
enum NcclType : int {
  kNcclUint8 = 1,
  kNcclInt32 = 2,
  kNcclInt64 = 4,
  kNcclFloat16 = 6,
  kNcclFloat32 = 7,
  kNcclFloat64 = 8,
  kNcclBfloat16 = 9,
};
enum NcclOp : int { kNcclSum = 0, kNcclMax = 2 };

/// The library's functions, loaded at run time. Results are ncclResult_t as int.
struct NcclApi {
  int (*get_unique_id)(NcclId* id);
  int (*comm_init_rank)(NcclComm* comm, int size, NcclId id, int rank);
  /// Since NCCL 2.18. `config` may be null.
  int (*comm_split)(NcclComm comm, int color, int key, NcclComm* made, void* config);
  int (*comm_destroy)(NcclComm comm);
  int (*comm_abort)(NcclComm comm);
  int (*comm_get_async_error)(NcclComm comm, int* error);
  const char* (*get_error_string)(int error);
  const char* (*get_last_error)(NcclComm comm);
  int (*all_reduce)(const void* in, void* out, std::size_t count, int type, int op, NcclComm comm,
                    CudaStream stream);
  int (*all_gather)(const void* in, void* out, std::size_t in_count, int type, NcclComm comm,
                    CudaStream stream);
  int (*broadcast)(const void* in, void* out, std::size_t count, int type, int root, NcclComm comm,
                   CudaStream stream);
  int (*reduce_scatter)(const void* in, void* out, std::size_t out_count, int type, int op,
                        NcclComm comm, CudaStream stream);
  int (*reduce)(const void* in, void* out, std::size_t count, int type, int op, int root,
                NcclComm comm, CudaStream stream);
  /// Since NCCL 2.7.
  int (*send)(const void* data, std::size_t count, int type, int to, NcclComm comm,
              CudaStream stream);
  int (*receive)(void* data, std::size_t count, int type, int from, NcclComm comm,
                 CudaStream stream);
  int (*group_start)();
  int (*group_end)();
};

/// Loads libnccl.so.2, which comes with libtorch_cuda, once per process.
[[nodiscard]] Result<const NcclApi*> load_nccl();

}  // namespace neap::parallel
