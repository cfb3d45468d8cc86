#include "base/status.h"

namespace neap {

struct Status::Detail {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  int native_code = 0;
  std::optional<MemoryShortage> shortage;
};

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk:
      return "ok";
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kNotFound:
      return "not found";
    case ErrorCode::kAlreadyExists:
      return "already exists";
    case ErrorCode::kOutOfDeviceMemory:
      return "out of device memory";
    case ErrorCode::kOutOfHostMemory:
      return "out of host memory";
    case ErrorCode::kBusy:
      return "busy";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kDeviceLost:
      return "device lost";
    case ErrorCode::kDriver:
      return "driver error";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kIo:
      return "input/output error";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kTimeout:
      return "timed out";
    case ErrorCode::kDoesNotFit:
      return "does not fit in memory";
    case ErrorCode::kInternal:
      return "internal error";
  }
  return "unknown error";
}

Status::Status(ErrorCode code, std::string message) {
  if (code == ErrorCode::kOk) return;
  auto detail = std::make_shared<Detail>();
  detail->code = code;
  detail->message = std::move(message);
  detail_ = std::move(detail);
}

Status Status::out_of_memory(std::string what, MemoryShortage shortage) {
  std::string message = std::move(what) + " needs " + to_string(shortage.need) + " but " +
                        to_string(shortage.free) + " of " + to_string(shortage.capacity) +
                        " is free";
  constexpr std::size_t kShown = 6;
  for (std::size_t i = 0; i < shortage.holders.size() && i < kShown; ++i) {
    message += i == 0 ? "; held by " : ", ";
    message += shortage.holders[i].tag + " " + to_string(shortage.holders[i].bytes);
  }
  if (shortage.holders.size() > kShown) {
    message += " and " + std::to_string(shortage.holders.size() - kShown) + " more";
  }
  auto detail = std::make_shared<Detail>();
  detail->code = ErrorCode::kOutOfDeviceMemory;
  detail->message = std::move(message);
  detail->shortage = std::move(shortage);
  Status status;
  status.detail_ = std::move(detail);
  return status;
}

Status Status::driver(ErrorCode code, std::string message, int native_code) {
  auto detail = std::make_shared<Detail>();
  detail->code = code;
  detail->message = std::move(message);
  detail->native_code = native_code;
  Status status;
  status.detail_ = std::move(detail);
  return status;
}

Status::Status(const Status& other) = default;
Status& Status::operator=(const Status& other) = default;

ErrorCode Status::code() const {
  return detail_ ? detail_->code : ErrorCode::kOk;
}

const std::string& Status::message() const {
  static const std::string kOkText = "ok";
  return detail_ ? detail_->message : kOkText;
}

int Status::native_code() const {
  return detail_ ? detail_->native_code : 0;
}

const MemoryShortage* Status::shortage() const {
  return detail_ && detail_->shortage ? &*detail_->shortage : nullptr;
}

Status Status::with_context(std::string_view what) && {
  if (ok()) return {};
  auto detail = std::make_shared<Detail>(*detail_);
  detail->message += " - while " + std::string(what);
  Status status;
  status.detail_ = std::move(detail);
  return status;
}

}  // namespace neap
