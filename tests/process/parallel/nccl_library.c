/* Stands for libnccl.so.2, so that loading it is tested without a GPU. Each function says which it is; LACKS leaves one out. */
#define FUNCTION(name, number) \
  int name(void) {             \
    return number;             \
  }

FUNCTION(ncclGetUniqueId, 1)
FUNCTION(ncclCommInitRank, 2)
FUNCTION(ncclCommDestroy, 3)
FUNCTION(ncclCommAbort, 4)
FUNCTION(ncclCommGetAsyncError, 5)
const char* ncclGetErrorString(void) {
  return "6";
}
const char* ncclGetLastError(void) {
  return "7";
}
FUNCTION(ncclAllReduce, 8)
#ifndef LACKS_ALL_GATHER
FUNCTION(ncclAllGather, 9)
#endif
FUNCTION(ncclBroadcast, 10)
FUNCTION(ncclReduceScatter, 11)
FUNCTION(ncclReduce, 12)
FUNCTION(ncclGroupStart, 13)
FUNCTION(ncclGroupEnd, 14)
FUNCTION(ncclCommSplit, 15)
FUNCTION(ncclSend, 16)
FUNCTION(ncclRecv, 17)
