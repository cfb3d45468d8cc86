#include "hook/error.h"

#include "hook/thread_slot.h"

namespace neap::hook {

neap_status fail(Status status) {
  Status& last = ThreadSlot<Status>::get();
  last = std::move(status);
  return static_cast<neap_status>(last.code());
}

const Status& last_failure() {
  static const Status* const kNone = new Status();
  const Status* last = ThreadSlot<Status>::peek();
  return last != nullptr ? *last : *kNone;
}

}  // namespace neap::hook
