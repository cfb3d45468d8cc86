#include "parallel/nccl_api.h"

#include <dlfcn.h>

#include "base/format.h"
#include "base/symbols.h"

namespace neap::parallel {
namespace {

Result<NcclApi> open_nccl() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr)
    return Status(ErrorCode::kUnsupported, format("libnccl.so.2 does not load: {}", dlerror()));
  NcclApi api{};
  Symbols symbols(library);
  symbols.find(api.get_unique_id, "ncclGetUniqueId");
  symbols.find(api.comm_init_rank, "ncclCommInitRank");
  symbols.find(api.comm_split, "ncclCommSplit");
  symbols.find(api.comm_destroy, "ncclCommDestroy");
  symbols.find(api.comm_abort, "ncclCommAbort");
  symbols.find(api.comm_get_async_error, "ncclCommGetAsyncError");
  symbols.find(api.get_error_string, "ncclGetErrorString");
  symbols.find(api.get_last_error, "ncclGetLastError");
  symbols.find(api.all_reduce, "ncclAllReduce");
  symbols.find(api.all_gather, "ncclAllGather");
  symbols.find(api.broadcast, "ncclBroadcast");
  symbols.find(api.reduce_scatter, "ncclReduceScatter");
  symbols.find(api.reduce, "ncclReduce");
  symbols.find(api.send, "ncclSend");
  symbols.find(api.receive, "ncclRecv");
  symbols.find(api.group_start, "ncclGroupStart");
  symbols.find(api.group_end, "ncclGroupEnd");
  if (symbols.missing() != nullptr)
    return Status(ErrorCode::kUnsupported,
                  format("libnccl.so.2 has no {}: too old", symbols.missing()));
  return api;
}

}  // namespace

Result<const NcclApi*> load_nccl() {
  static const Result<NcclApi> kApi = open_nccl();
  if (!kApi.ok()) return Status(kApi.status());
  return &kApi.value();
}

}  // namespace neap::parallel
