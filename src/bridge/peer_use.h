// What a rank exchanged with others while it computed.
//
// Threads   values.
#pragma once

#include "base/bytes.h"

namespace neap::bridge {

/// Sums over ranks.
struct PeerUse {
  Bytes bytes;                 ///< of the tensors
  double seconds = 0;          ///< that they took
  double visible_seconds = 0;  ///< of these, those that nothing hid
  PeerUse& operator+=(const PeerUse& o) {
    bytes += o.bytes;
    seconds += o.seconds;
    visible_seconds += o.visible_seconds;
    return *this;
  }
};

}  // namespace neap::bridge
