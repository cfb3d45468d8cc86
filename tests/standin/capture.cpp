// Stream capture, as far as its rules go: nothing is recorded. Waiting for a captured stream, or for a
// device with one, fails and breaks the capture.
#include "capture.h"

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>

#define STANDIN_API extern "C" __attribute__((visibility("default")))

namespace neap::standin {
namespace {

constexpr int kIllegalState = 401, kUnsupported = 900, kInvalidated = 901, kNotSupported = 801;

struct Captures {
  std::mutex mutex;
  std::map<Stream, bool> streams;  ///< stream -> still valid
};
Captures& captures() {
  static auto* all = new Captures();  // never destroyed, as Card
  return *all;
}

}  // namespace

int refuse_wait_in_capture(Stream stream) {
  const std::lock_guard lock(captures().mutex);
  bool refused = false;
  for (auto& [captured, valid] : captures().streams) {
    if (stream != kAnyStream && stream != captured) continue;
    valid = false;
    refused = true;
  }
  return refused ? kUnsupported : 0;
}

}  // namespace neap::standin

using namespace neap::standin;  // NOLINT(google-build-using-namespace)

STANDIN_API int cuStreamBeginCapture_v2(Stream stream, int) {
  const std::lock_guard lock(captures().mutex);
  return captures().streams.emplace(stream, true).second ? 0 : kIllegalState;
}
STANDIN_API int cuStreamEndCapture(Stream stream, std::uint64_t* graph) {
  const std::lock_guard lock(captures().mutex);
  const auto it = captures().streams.find(stream);
  if (it == captures().streams.end()) return kIllegalState;
  const bool valid = it->second;
  captures().streams.erase(it);
  *graph = valid ? 0x6000 : 0;
  return valid ? 0 : kInvalidated;
}
STANDIN_API int cuStreamIsCapturing(Stream stream, int* state) {
  const std::lock_guard lock(captures().mutex);
  const auto it = captures().streams.find(stream);
  *state = it == captures().streams.end() ? 0 : it->second ? 1 : 2;
  return 0;
}
STANDIN_API int cuThreadExchangeStreamCaptureMode(int* mode) {
  static thread_local int current = 0;
  std::swap(*mode, current);
  return 0;
}
// Nothing was recorded, so there is nothing to run.
STANDIN_API int cuGraphGetNodes(std::uint64_t, std::uint64_t*, std::size_t* count) {
  *count = 0;
  return 0;
}
STANDIN_API int cuGraphInstantiateWithFlags(std::uint64_t*, std::uint64_t, unsigned long long) {
  return kNotSupported;
}
STANDIN_API int cuGraphUpload(std::uint64_t, Stream) {
  return kNotSupported;
}
STANDIN_API int cuGraphLaunch(std::uint64_t, Stream) {
  return kNotSupported;
}
STANDIN_API int cuGraphExecDestroy(std::uint64_t) {
  return 0;
}
STANDIN_API int cuGraphDestroy(std::uint64_t) {
  return 0;
}
