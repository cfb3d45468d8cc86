// One connected Unix socket of the sharing protocol: JSON messages with page descriptors.
//
// SOCK_SEQPACKET. A message is one JSON object of at most 64 KiB, with at most 128 descriptors:
//
//   both   {"type": "hello" (guest, first) or "welcome" (owner), "version": 1, "pid": P}
//   guest  {"type": "take", "name": N, "wait_ms": W}
//   owner  {"type": "lend", "name": N, "size": S, "generation": G,
//           "pages": [[offset, size, lead], ...], "last": B}: one descriptor per page. If "last" is
//           false, more messages follow. `lead` bytes of the first page precede the region.
//   owner  {"type": "refuse", "name": N, "code": a neap_status, "message": M}
//   owner  {"type": "revoke", "name": N}
//   guest  {"type": "drop", "name": N}: without a request, or in answer to a revocation
//
// Threads   send() from any; receive() from one at a time.
//
// Failure   kCancelled if the peer is gone. kCorrupt if it violates the format; the connection is then
//           unusable.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/json.h"
#include "base/status.h"

namespace neap::hook {

/// A received message. A missing field, or one of another type, reads as empty or zero.
struct Message {
  Json body;
  std::vector<Descriptor> descriptors;
  [[nodiscard]] std::string text(const char* field) const;
  [[nodiscard]] std::uint64_t number(const char* field) const;
};

/// The kernel passes at most 253 descriptors in one message.
inline constexpr std::size_t kMostDescriptors = 128;

class Wire {
 public:
  explicit Wire(Descriptor socket);
  [[nodiscard]] int descriptor() const { return socket_.get(); }
  Status send(const Json& body, std::span<const int> descriptors = {});
  [[nodiscard]] Result<Message> receive();
  /// Shuts down both directions: the peer and a running receive() see the end.
  void shut();

 private:
  Descriptor socket_;
  std::mutex mutex_;
};

}  // namespace neap::hook
