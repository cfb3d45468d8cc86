// Outcomes without exceptions: Status, Result<T>, and Error for the modules that throw.
//
// Below bridge/ every fallible function returns Status or Result<T>. Nothing is thrown there,
// because this code runs inside malloc hooks, in destructors and at exit. Above bridge/,
// `value_or_throw` turns a failure into Error.
//
// Cost      a success is one null pointer; a failure is one allocation.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace neap {

/// Values are part of the C ABI and never reused.
enum class ErrorCode : int {
  kOk = 0,
  kInvalidArgument = 1,
  kNotFound = 2,
  kAlreadyExists = 3,
  kOutOfDeviceMemory = 4,  ///< the device or its budget is full; no other failure uses this code
  kOutOfHostMemory = 5,
  kBusy = 6,        ///< in use now; the same call may succeed later
  kCorrupt = 7,     ///< a file or message violates its format
  kDeviceLost = 8,  ///< the context is gone; no later call on this device can succeed
  kDriver = 9,      ///< any other driver error; native_code() returns its code
  kUnsupported = 10,
  kIo = 11,
  kCancelled = 12,
  kTimeout = 13,
  kDoesNotFit = 14,  ///< no schedule fits under the capacity (exit code 3)
  kInternal = 15,
};
[[nodiscard]] std::string_view to_string(ErrorCode code);

/// A holder of memory that an allocation could not get.
struct MemoryHolder {
  std::string tag;
  Bytes bytes;
};
/// Details of an out-of-memory error: `need` was requested, `free` was left of `capacity`.
struct MemoryShortage {
  Bytes need;
  Bytes free;
  Bytes capacity;
  std::vector<MemoryHolder> holders;  ///< largest first
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message);
  /// Makes a kOutOfDeviceMemory: appends "needs ... but ... is free; held by ..." to `what`.
  static Status out_of_memory(std::string what, MemoryShortage shortage);
  /// Keeps the driver's code and name unchanged.
  static Status driver(ErrorCode code, std::string message, int native_code);

  Status(const Status& other);
  Status& operator=(const Status& other);
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;
  ~Status() = default;

  [[nodiscard]] bool ok() const { return detail_ == nullptr; }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] ErrorCode code() const;
  /// The sentence and its context: "Resume needs 2 GiB but 1 GiB is free. - while resuming tag
  /// \"kv\"".
  [[nodiscard]] const std::string& message() const;
  [[nodiscard]] int native_code() const;
  /// Set for kOutOfDeviceMemory made by out_of_memory(); else null.
  [[nodiscard]] const MemoryShortage* shortage() const;
  /// Adds " - while <what>" to a failure; returns a success unchanged.
  [[nodiscard]] Status with_context(std::string_view what) &&;

 private:
  struct Detail;
  std::shared_ptr<const Detail> detail_;
};

[[nodiscard]] inline Status ok_status() {
  return {};
}

/// A value, or the reason why there is none. Calling value() on a failure is a bug and aborts.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (status_.ok())
      status_ = Status(ErrorCode::kInternal, "Result made from a status that is ok");
  }
  [[nodiscard]] bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] T& value() & {
    check();
    return *value_;
  }
  [[nodiscard]] const T& value() const& {
    check();
    return *value_;
  }
  [[nodiscard]] T&& value() && {
    check();
    return *std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void check() const {
    if (!value_) std::abort();
  }
  std::optional<T> value_;
  Status status_;
};

/// Thrown by the modules above bridge/. main() catches it, prints what() and selects the exit code.
class Error : public std::runtime_error {
 public:
  explicit Error(Status status)
      : std::runtime_error(status.message()), status_(std::move(status)) {}
  Error(ErrorCode code, std::string message) : Error(Status(code, std::move(message))) {}
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  Status status_;
};

inline void throw_if_error(Status status) {
  if (!status.ok()) throw Error(std::move(status));
}
template <class T>
[[nodiscard]] T value_or_throw(Result<T> result) {
  if (!result.ok()) throw Error(result.status());
  return std::move(result).value();
}

}  // namespace neap

#define NEAP_CONCAT_INNER(a, b) a##b
#define NEAP_CONCAT(a, b) NEAP_CONCAT_INNER(a, b)
/// Returns from the enclosing function if `expr` (a Status) failed.
#define NEAP_TRY(expr)                                               \
  do {                                                               \
    if (::neap::Status neap_s = (expr); !neap_s.ok()) return neap_s; \
  } while (false)
/// `NEAP_TRY_ASSIGN(auto page, device.create(size));` declares or assigns, or returns the failure.
#define NEAP_TRY_ASSIGN(target, expr)                              \
  auto NEAP_CONCAT(neap_r, __LINE__) = (expr);                     \
  if (!NEAP_CONCAT(neap_r, __LINE__).ok())                         \
    return ::neap::Status(NEAP_CONCAT(neap_r, __LINE__).status()); \
  target = std::move(NEAP_CONCAT(neap_r, __LINE__)).value()
