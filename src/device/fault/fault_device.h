// A device that fails on command: every call goes through to another device, except the one that a
// test asked to fail.
//
// Model     Calls are counted from 1, all together or of one kind. The chosen call returns the
//           chosen code without reaching the device below, so it "has changed nothing", as the seam
//           promises. info() cannot fail and is not counted.
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
  kQueueDrain,
};
inline constexpr int kCallKinds = static_cast<int>(Call::kQueueDrain) + 1;
[[nodiscard]] std::string_view to_string(Call call);

struct FaultPlan {
  std::uint64_t fail_at = 0;  ///< which call fails, counted from now; 0: none
  std::optional<Call> only;   ///< count only this kind
  ErrorCode code = ErrorCode::kDriver;
  bool stays = false;  ///< every counted call from fail_at on fails, too
};

class FaultDevice : public Device {
 public:
  /// Starts counting anew.
  virtual void arm(FaultPlan plan) = 0;
  /// Calls counted since arm.
  [[nodiscard]] virtual std::uint64_t calls() const = 0;
  /// Whether the chosen call came.
  [[nodiscard]] virtual bool fired() const = 0;
  /// The kind of the call that was made to fail, for messages.
  [[nodiscard]] virtual std::optional<Call> failed_call() const = 0;
};

/// `below` outlives the result.
[[nodiscard]] std::unique_ptr<FaultDevice> make_fault_device(Device& below);

}  // namespace neap::device
