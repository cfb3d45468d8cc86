// Any bytes through trace::read: packings, pickles, Neap's format.
#include "check.h"
#include "trace/reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto r =
      neap::trace::read_bytes({data, size}, "fuzz", {.memory_limit = neap::Bytes(256 << 20)});
  if (r.ok()) {
    neap::trace::check(*r);
  } else {
    neap::trace::require(!r.status().message().empty());
  }
  return 0;
}
