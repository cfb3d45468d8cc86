#include "parallel/nccl_api.h"

#include <dlfcn.h>

#include "base/format.h"

namespace neap::parallel {
namespace {

Result<NcclApi> open_nccl() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr)
    return Status(ErrorCode::kUnsupported, format("libnccl.so.2 does not load: {}", dlerror()));
  NcclApi api{};
  std::string missing;
  const auto find = [&]<class F>(F& function, const char* name) {
    void* const symbol = dlsym(library, name);
    if (symbol == nullptr) missing = name;
    function = reinterpret_cast<F>(symbol);
  };
  find(api.get_unique_id, "ncclGetUniqueId");
  find(api.comm_init_rank, "ncclCommInitRank");
  find(api.comm_split, "ncclCommSplit");
  find(api.comm_destroy, "ncclCommDestroy");
  find(api.comm_abort, "ncclCommAbort");
  find(api.comm_get_async_error, "ncclCommGetAsyncError");
  find(api.get_error_string, "ncclGetErrorString");
  find(api.get_last_error, "ncclGetLastError");
  find(api.all_reduce, "ncclAllReduce");
  find(api.all_gather, "ncclAllGather");
  find(api.broadcast, "ncclBroadcast");
  find(api.reduce_scatter, "ncclReduceScatter");
  find(api.reduce, "ncclReduce");
  find(api.send, "ncclSend");
  find(api.receive, "ncclRecv");
  find(api.group_start, "ncclGroupStart");
  find(api.group_end, "ncclGroupEnd");
  if (!missing.empty())
    return Status(ErrorCode::kUnsupported, format("libnccl.so.2 has no {}: too old", missing));
  return api;
}

}  // namespace

Result<const NcclApi*> load_nccl() {
  static const Result<NcclApi> kApi = open_nccl();
  if (!kApi.ok()) return Status(kApi.status());
  return &kApi.value();
}

}  // namespace neap::parallel
