// Prints what load_nccl() gives: the number of each function of nccl_library.c, or why there are none.
#include <cstdio>

#include "parallel/nccl_api.h"

int main() {
  const auto api = neap::parallel::load_nccl();
  if (!api.ok()) {
    std::puts(std::string(api.status().message()).c_str());
    return 0;
  }
  const neap::parallel::NcclApi& nccl = **api;
  std::printf("%d %d %d %d %d %s %s %d %d %d %d %d %d %d %d %d %d\n", nccl.get_unique_id(nullptr),
              nccl.comm_init_rank(nullptr, 0, {}, 0), nccl.comm_destroy(nullptr),
              nccl.comm_abort(nullptr), nccl.comm_get_async_error(nullptr, nullptr),
              nccl.get_error_string(0), nccl.get_last_error(nullptr),
              nccl.all_reduce(nullptr, nullptr, 0, 0, 0, nullptr, nullptr),
              nccl.all_gather(nullptr, nullptr, 0, 0, nullptr, nullptr),
              nccl.broadcast(nullptr, nullptr, 0, 0, 0, nullptr, nullptr),
              nccl.reduce_scatter(nullptr, nullptr, 0, 0, 0, nullptr, nullptr),
              nccl.reduce(nullptr, nullptr, 0, 0, 0, 0, nullptr, nullptr), nccl.group_start(),
              nccl.group_end(), nccl.comm_split(nullptr, 0, 0, nullptr, nullptr),
              nccl.send(nullptr, 0, 0, 0, nullptr, nullptr),
              nccl.receive(nullptr, 0, 0, 0, nullptr, nullptr));
  return 0;
}
