// Watches calls that take long, from a thread of its own, because a call may wait inside NCCL
// itself: it connects to a peer when it first needs it. A rank that has failed, or that does not
// come in time, makes it abort the communicator, which ends the call. Time begins again when any rank shows that it
// works (Communicator::show_life).
//
// Threads   begin() and end() belong to one thread; the rest may be called from any.
// Failure   none of its own; after it gave up, reason() says why.
// Cost      a thread that wakes once a second, and looks at the rendezvous while a call takes longer.
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
  /// Calls abort() at most once, from its thread. `rendezvous` outlives it.
  NcclWatch(Rendezvous& rendezvous, int rank, double timeout_seconds, std::function<void()> abort);
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;
  ~NcclWatch();

  void begin(const char* call);
  void end();
  [[nodiscard]] bool gave_up() const { return gave_up_; }
  /// Why it gave up.
  [[nodiscard]] Status reason() const;

 private:
  void loop();

  Rendezvous& rendezvous_;
  int rank_;
  double timeout_;
  std::function<void()> abort_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  WaitClock clock_;  // since the call's begin, or the last sign of life behind that
  std::int64_t calls_ = 0;
  bool waits_ = false;      // the last one has not ended
  std::int64_t signs_ = 0;  // of life, when they were last counted
  const char* call_ = "";
  Status reason_;
  std::atomic<bool> gave_up_ = false;
  bool ending_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace neap::parallel
