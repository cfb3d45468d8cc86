// Measured communication between ranks.
//
// Threads   values.
#pragma once

#include "base/bytes.h"

namespace neap::bridge {

/// Use of collectives that may overlap with computation.
struct PeerUse {
  Bytes bytes;                 ///< of the tensors
  double seconds = 0;          ///< total time
  double visible_seconds = 0;  ///< exposed part of it
  PeerUse& operator+=(const PeerUse& o) {
    bytes += o.bytes;
    seconds += o.seconds;
    visible_seconds += o.visible_seconds;
    return *this;
  }
};

}  // namespace neap::bridge
