// Sharing between processes: an owner shares the pages of its regions with guests, without a copy.
//
// Model     The owner serves offers (name -> region) at a Unix socket. A guest takes an offer and maps
//           the same pages as an imported region. Before the owner's region is paused or an offer is
//           withdrawn, the owner asks every guest that maps it to unmap it, and waits. The socket shows
//           when a process dies. A dead guest maps nothing. Pages of a dead owner stay valid in its
//           guests until they drop them.
//
// Threads   any. Each object has its own thread, which calls the guest's revocation callback.
//
// Failure   Status. If a guest does not unmap in time, the pause fails with kBusy.
//
// Cost      a take exports and imports one descriptor per page; no bytes are copied.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "hook/runtime.h"

namespace neap::hook {

inline constexpr int kHandOverVersion = 1;

class HandOverOwner {
 public:
  using Duration = std::chrono::milliseconds;
  [[nodiscard]] static Result<std::unique_ptr<HandOverOwner>> open(const std::string& path);
  ~HandOverOwner();
  Status offer(const std::string& name, const void* address, Duration revoke_wait);
  Status withdraw(const std::string& name, Duration revoke_wait);
  [[nodiscard]] Result<std::uint64_t> guests(const std::string& name);
  /// Withdraws all offers and closes the socket, even after a failure.
  Status close(Duration revoke_wait);

 private:
  struct Impl;
  explicit HandOverOwner(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct Loan {
  device::Address address = 0;
  Bytes size;
  std::uint64_t generation = 0;
};

class HandOverGuest {
 public:
  /// See neap_revoked in neap.h.
  using Revoked = std::function<void(const std::string& name, device::Address at, bool lost)>;
  [[nodiscard]] static Result<std::unique_ptr<HandOverGuest>> open(const std::string& path,
                                                                   Revoked revoked);
  ~HandOverGuest();
  [[nodiscard]] Result<Loan> take(const std::string& name, int device, const std::string& tag,
                                  std::chrono::milliseconds wait);
  Status drop(const std::string& name);
  /// Drops all regions. kBusy on the guest's own thread.
  Status close();

 private:
  struct Impl;
  explicit HandOverGuest(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace neap::hook
