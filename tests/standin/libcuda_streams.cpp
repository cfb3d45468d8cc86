// The calls of libcuda.so.1 that copy and fill, and those of streams and events.
#include "capture.h"
#include "libcuda.h"

STANDIN_API int cuMemcpyDtoH_v2(void* to, Address from, std::size_t size) {
  ENTER_WITH_CONTEXT("cuMemcpyDtoH")
  return Card::get().copy(host(to), from, size, false, true);
}
STANDIN_API int cuMemcpyHtoD_v2(Address to, const void* from, std::size_t size) {
  ENTER_WITH_CONTEXT("cuMemcpyHtoD")
  return Card::get().copy(to, host(from), size, true, false);
}
STANDIN_API int cuMemcpyDtoD_v2(Address to, Address from, std::size_t size) {
  ENTER_WITH_CONTEXT("cuMemcpyDtoD")
  return Card::get().copy(to, from, size, true, true);
}
STANDIN_API int cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t size, Opaque stream) {
  ENTER_WITH_CONTEXT("cuMemcpyDtoHAsync")
  if (const int result = Card::get().check_stream(stream); result != kSuccess) return result;
  return Card::get().copy(host(to), from, size, false, true);
}
STANDIN_API int cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t size,
                                     Opaque stream) {
  ENTER_WITH_CONTEXT("cuMemcpyHtoDAsync")
  if (const int result = Card::get().check_stream(stream); result != kSuccess) return result;
  return Card::get().copy(to, host(from), size, true, false);
}
STANDIN_API int cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t size, Opaque stream) {
  ENTER_WITH_CONTEXT("cuMemcpyDtoDAsync")
  if (const int result = Card::get().check_stream(stream); result != kSuccess) return result;
  return Card::get().copy(to, from, size, true, true);
}
STANDIN_API int cuMemsetD8_v2(Address at, unsigned char value, std::size_t count) {
  ENTER_WITH_CONTEXT("cuMemsetD8")
  return Card::get().fill(at, value, count, current_device());
}
STANDIN_API int cuMemsetD8Async(Address at, unsigned char value, std::size_t count, Opaque stream) {
  ENTER_WITH_CONTEXT("cuMemsetD8Async")
  if (const int result = Card::get().check_stream(stream); result != kSuccess) return result;
  return Card::get().fill(at, value, count, current_device());
}

STANDIN_API int cuStreamCreate(Opaque* stream, unsigned) {
  ENTER_WITH_CONTEXT("cuStreamCreate")
  return Card::get().make_stream(stream);
}
STANDIN_API int cuStreamCreateWithPriority(Opaque* stream, unsigned, int) {
  ENTER_WITH_CONTEXT("cuStreamCreateWithPriority")
  return Card::get().make_stream(stream);
}
STANDIN_API int cuStreamDestroy_v2(Opaque stream) {
  ENTER("cuStreamDestroy")
  return Card::get().destroy_stream(stream);
}
STANDIN_API int cuStreamSynchronize(Opaque stream) {
  ENTER_WITH_CONTEXT("cuStreamSynchronize")
  if (const int refused = refuse_wait_in_capture(stream); refused != 0) return refused;
  return Card::get().check_stream(stream);
}
STANDIN_API int cuStreamQuery(Opaque stream) {
  ENTER_WITH_CONTEXT("cuStreamQuery")
  return Card::get().check_stream(stream);
}
STANDIN_API int cuStreamWaitEvent(Opaque stream, Opaque event, unsigned) {
  ENTER_WITH_CONTEXT("cuStreamWaitEvent")
  double ignored = 0;
  if (const int result = Card::get().event_time(event, &ignored); result != kSuccess) {
    return result;
  }
  return Card::get().check_stream(stream);
}
STANDIN_API int cuEventCreate(Opaque* event, unsigned) {
  ENTER_WITH_CONTEXT("cuEventCreate")
  return Card::get().make_event(event);
}
STANDIN_API int cuEventDestroy_v2(Opaque event) {
  ENTER("cuEventDestroy")
  return Card::get().destroy_event(event);
}
STANDIN_API int cuEventRecord(Opaque event, Opaque stream) {
  ENTER_WITH_CONTEXT("cuEventRecord")
  if (const int result = Card::get().check_stream(stream); result != kSuccess) return result;
  return Card::get().record_event(event);
}
STANDIN_API int cuEventSynchronize(Opaque event) {
  ENTER_WITH_CONTEXT("cuEventSynchronize")
  double ignored = 0;
  return Card::get().event_time(event, &ignored);
}
STANDIN_API int cuEventQuery(Opaque event) {
  return cuEventSynchronize(event);
}
STANDIN_API int cuEventElapsedTime(float* milliseconds, Opaque begin, Opaque end) {
  ENTER("cuEventElapsedTime")
  double a = 0, b = 0;
  if (Card::get().event_time(begin, &a) != kSuccess) return kInvalidHandle;
  if (Card::get().event_time(end, &b) != kSuccess) return kInvalidHandle;
  *milliseconds = static_cast<float>((b - a) * 1e3);
  return kSuccess;
}
