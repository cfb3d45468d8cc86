// A device that fails on request. It forwards every call to another device, except the one that a test
// wants to fail.
//
// Model     Calls are counted from 1, either all calls or those of one kind. The chosen call returns the
//           chosen code and does not reach the other device. It has therefore changed nothing, as
//           device.h requires. info() cannot fail and is not counted.
//
// Threads   any.
#pragma once

#include <memory>
#include <optional>

#include "device/device.h"

namespace neap::device {

enum class Call : int {
  kMemory,
  kReserve,
  kUnreserve,
  kCreate,
  kRelease,
  kMap,
  kSetAccess,
  kUnmap,
  kGrantPeer,
  kCopyToHost,
  kCopyToDevice,
  kFill,
  kMakeCopyQueue,
  kSynchronize,
  kRegisterHost,
  kUnregisterHost,
  kExport,
  kImport,
  kQueueToHost,
  kQueueToDevice,
  kQueueMark,
  kQueueWait,
  kQueueSeconds,
  kQueueDrain,
  kQueueBeginAfter,
  kQueueHoldStream,
  kQueueHoldOtherDirection,
};
inline constexpr int kCallKinds = static_cast<int>(Call::kQueueHoldOtherDirection) + 1;
[[nodiscard]] std::string_view to_string(Call call);

struct FaultPlan {
  std::uint64_t fail_at = 0;  ///< the call that fails, counted from arm(); 0: none
  std::optional<Call> only;   ///< count only this kind
  ErrorCode code = ErrorCode::kDriver;
  bool stays = false;  ///< every counted call from fail_at on fails
};

class FaultDevice : public Device {
 public:
  /// Sets the plan and restarts the count.
  virtual void arm(FaultPlan plan) = 0;
  /// Calls counted since arm.
  [[nodiscard]] virtual std::uint64_t calls() const = 0;
  /// Whether the chosen call was made.
  [[nodiscard]] virtual bool fired() const = 0;
  /// The kind of the call that failed, for messages.
  [[nodiscard]] virtual std::optional<Call> failed_call() const = 0;
};

/// `below` outlives the result.
[[nodiscard]] std::unique_ptr<FaultDevice> make_fault_device(Device& below);

}  // namespace neap::device
