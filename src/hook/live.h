// Publishes this process's statistics to a folder while it runs. `neap run` shows them.
//
// Model     With NEAP_LIVE=FOLDER set, a thread writes FOLDER/PID.json (stats_json) four times a
//           second if something has changed. Files are replaced atomically; the last one stays.
//
// Threads   its own thread, started by the first hooked allocation.
//
// Fork      a child does not have the thread.
#pragma once

namespace neap::hook {

class Live {
 public:
  /// Once per process: starts the thread if NEAP_LIVE is set, and starts the trace that NEAP_TRACE
  /// names.
  static void ensure_started();
};

}  // namespace neap::hook
