#include "hook/hand_over_message.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "base/format.h"

namespace neap::hook {
namespace {

constexpr std::size_t kLongestMessage = 64U << 10;
constexpr timeval kSendLimit{5, 0};  ///< a peer that reads nothing for this long is disconnected

}  // namespace

std::string Message::text(const char* field) const {
  const auto it = body.find(field);
  return it != body.end() && it->is_string() ? it->get<std::string>() : std::string();
}
std::uint64_t Message::number(const char* field) const {
  const auto it = body.find(field);
  return it != body.end() && it->is_number_unsigned() ? it->get<std::uint64_t>() : 0;
}

Wire::Wire(Descriptor socket) : socket_(std::move(socket)) {
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &kSendLimit, sizeof kSendLimit);
}

Status Wire::send(const Json& body, std::span<const int> descriptors) {
  const std::string text = json_text(body);
  if (text.size() > kLongestMessage || descriptors.size() > kMostDescriptors) {
    return {ErrorCode::kInternal, "A hand-over message is too long"};
  }
  iovec data{const_cast<char*>(text.data()), text.size()};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  if (!descriptors.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* first = CMSG_FIRSTHDR(&header);
    first->cmsg_level = SOL_SOCKET;
    first->cmsg_type = SCM_RIGHTS;
    first->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(first), descriptors.data(), descriptors.size_bytes());
  }
  const std::lock_guard lock(mutex_);
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return {};
  if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) {
    return {ErrorCode::kCancelled, "The other process of the hand-over is gone"};
  }
  return {ErrorCode::kIo, format("Cannot send a hand-over message: {}", system_reason(errno))};
}

Result<Message> Wire::receive() {
  std::string text(kLongestMessage, '\0');
  iovec data{text.data(), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got == 0 || (got < 0 && errno == ECONNRESET)) {
    return Status(ErrorCode::kCancelled, "The other process of the hand-over is gone");
  }
  if (got < 0) {
    return Status(ErrorCode::kIo,
                  format("Cannot receive a hand-over message: {}", system_reason(errno)));
  }
  Message message;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof fd);
      message.descriptors.emplace_back(fd);
    }
  }
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return Status(
        ErrorCode::kCorrupt,
        "A hand-over message was truncated: too long, or this process may not open so many "
        "files (ulimit -n)");
  }
  text.resize(static_cast<std::size_t>(got));
  NEAP_TRY_ASSIGN(message.body, parse_json(text, "a hand-over message"));
  if (!message.body.is_object()) {
    return Status(ErrorCode::kCorrupt, "A hand-over message is not a JSON object");
  }
  return message;
}

void Wire::shut() {
  ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace neap::hook
