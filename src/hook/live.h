// Publishes this process's numbers to a folder while it runs, for `neap run` to show.
//
// Model     With NEAP_LIVE=FOLDER set, a thread writes FOLDER/PID.json (stats_json) four times a
//           second when something has changed; readers see whole files. The last one stays.
// Threads   one of its own, started by the first hooked allocation.
// Fork      the child has no such thread.
#pragma once

namespace neap::hook {

class Live {
 public:
  /// Starts the thread, once a process, when NEAP_LIVE is set; also the trace that NEAP_TRACE names.
  static void ensure_started();
};

}  // namespace neap::hook
