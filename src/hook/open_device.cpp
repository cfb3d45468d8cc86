#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/format.h"
#include "device/cuda/cuda_device.h"
#include "device/host/host_device.h"
#include "hook/runtime.h"

namespace neap::hook {
namespace {

struct Choice {
  bool host = false;
  Bytes size;
  int count = 1;
};

Status bad_choice(std::string_view text) {
  return {ErrorCode::kInvalidArgument,
          format("NEAP_HOOK_DEVICE is \"{}\"; it can be cuda, host:SIZE or host:SIZExCOUNT, as in "
                 "host:2GiB",
                 text)};
}

Result<Choice> read_choice() {
  const char* variable = std::getenv("NEAP_HOOK_DEVICE");
  const std::string_view text = variable != nullptr ? variable : "cuda";
  Choice choice;
  if (text.empty() || text == "cuda") return choice;
  constexpr std::string_view kHost = "host:";
  if (!text.starts_with(kHost)) return bad_choice(text);
  std::string_view size = text.substr(kHost.size());
  if (const auto cross = size.find('x'); cross != std::string_view::npos) {
    const std::string_view count = size.substr(cross + 1);
    const auto [end, error] =
        std::from_chars(count.data(), count.data() + count.size(), choice.count);
    if (error != std::errc() || end != count.data() + count.size() || choice.count < 1) {
      return bad_choice(text);
    }
    size = size.substr(0, cross);
  }
  auto bytes = parse_bytes(size);
  if (!bytes.ok()) return bad_choice(text);
  choice.host = true;
  choice.size = *bytes;
  return choice;
}

}  // namespace

Result<int> count_devices() {
  NEAP_TRY_ASSIGN(const Choice choice, read_choice());
  if (choice.host) return choice.count;
  auto count = device::cuda_device_count();
  // Without a driver the count is 0; the caller gets any other failure.
  if (!count.ok() && count.status().code() == ErrorCode::kUnsupported) return 0;
  return count;
}

Result<std::unique_ptr<device::Device>> open_device(int ordinal) {
  NEAP_TRY_ASSIGN(const Choice choice, read_choice());
  if (!choice.host) {
    NEAP_TRY_ASSIGN(auto device, device::make_cuda_device(ordinal));
    return std::unique_ptr<device::Device>(std::move(device));
  }
  if (ordinal >= choice.count) {
    return Status(ErrorCode::kInvalidArgument,
                  format("There is no device {}: NEAP_HOOK_DEVICE has {}", ordinal, choice.count));
  }
  device::HostOptions options;
  options.capacity = choice.size;
  options.ordinal = ordinal;
  options.name = format("host memory {}", ordinal);
  NEAP_TRY_ASSIGN(auto device, device::make_host_device(std::move(options)));
  return std::unique_ptr<device::Device>(std::move(device));
}

}  // namespace neap::hook
