// Watches long NCCL calls from a separate thread. The caller cannot watch them, because it may
// block inside NCCL, which connects to a peer on first use. If a rank has failed or is late, the
// watch aborts the communicator, which ends the call. The timeout restarts when any rank calls
// Communicator::show_life().
//
// Threads   begin() and end() belong to one thread; the rest may be called from any.
// Failure   none of its own; reason() says why it aborted.
// Cost      a thread that wakes once a second. It queries the rendezvous only while a call takes
//           longer than that.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "base/status.h"
#include "parallel/rendezvous.h"
#include "parallel/wait_clock.h"

namespace neap::parallel {

class NcclWatch {
 public:
  /// Calls `abort` at most once, from its thread. `rendezvous` must outlive it.
  NcclWatch(Rendezvous& rendezvous, int rank, double timeout_seconds, std::function<void()> abort);
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;
  ~NcclWatch();

  void begin(const char* call);
  void end();
  [[nodiscard]] bool gave_up() const { return gave_up_; }
  /// Why it aborted.
  [[nodiscard]] Status reason() const;

 private:
  void loop();

  Rendezvous& rendezvous_;
  int rank_;
  double timeout_;
  std::function<void()> abort_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  WaitClock clock_;  // since the call's begin, or the last sign of life after it
  std::int64_t calls_ = 0;
  bool waits_ = false;      // the last call has not ended
  std::int64_t signs_ = 0;  // signs of life at the last check
  const char* call_ = "";
  Status reason_;
  std::atomic<bool> gave_up_ = false;
  bool ending_ = false;
  std::thread thread_;  // last member, because the thread uses the others
};

}  // namespace neap::parallel
