// Hand-over of 15 GB: as an alias in this process, and to another process over a socket.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "base/format.h"
#include "bench.h"

namespace neap::bench {
namespace {

using arena::Arena;
using arena::ExportedPage;

constexpr std::size_t kMost = 200;  // descriptors in one message

struct Batch {
  std::uint64_t count = 0;
  std::uint64_t last = 0;  ///< 1: the region is whole, 2: all regions are
  ExportedPage pages[kMost];
};

void check(bool done, const char* what) {
  if (!done) fail({ErrorCode::kIo, format("{}: {}", what, system_reason(errno))});
}

void send_batch(int socket, const Batch& batch) {
  iovec data{const_cast<Batch*>(&batch), sizeof batch};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMost)] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (batch.count != 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * batch.count);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * batch.count);
    for (std::size_t i = 0; i < batch.count; ++i)
      std::memcpy(CMSG_DATA(header) + i * sizeof(int), &batch.pages[i].descriptor, sizeof(int));
  }
  check(::sendmsg(socket, &message, 0) == static_cast<ssize_t>(sizeof batch), "sending pages");
}

void receive_batch(int socket, Batch& batch) {
  iovec data{&batch, sizeof batch};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMost)] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  check(::recvmsg(socket, &message, MSG_WAITALL) == static_cast<ssize_t>(sizeof batch),
        "receiving pages");
  if (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr) {
    for (std::size_t i = 0; i < batch.count; ++i)
      std::memcpy(&batch.pages[i].descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
  }
}

}  // namespace

int import_child(const Setup& setup, int socket) {
  const auto device = open_device(setup);
  auto arena = must(Arena::make(*device));
  char word = 'r';
  check(::write(socket, &word, 1) == 1, "saying ready");
  for (;;) {
    std::vector<ExportedPage> pages;
    std::vector<arena::RegionInfo> regions;
    Batch batch;
    do {
      receive_batch(socket, batch);
      pages.insert(pages.end(), batch.pages, batch.pages + batch.count);
      if (batch.last == 0) continue;
      if (pages.empty()) return 0;
      regions.push_back(must(arena->import_pages("rollout", pages)));
      for (const ExportedPage& page : pages) ::close(page.descriptor);
      pages.clear();
    } while (batch.last != 2);
    check(::write(socket, &word, 1) == 1, "saying done");
    for (const auto& region : regions) must(arena->destroy(region.id));
    check(::write(socket, &word, 1) == 1, "saying gone");
  }
}

void run_hand_over(const Setup& setup, const char* program) {
  const auto device = open_device(setup);
  auto arena = must(Arena::make(*device));
  constexpr int kRegions = 30;  // a block's weights each
  std::vector<arena::RegionInfo> regions;
  for (int i = 0; i < kRegions; ++i)
    regions.push_back(must(arena->create("train", 512_MiB / setup.divide)));
  const Json extra = {{"bytes", (regions.front().size * kRegions).count()}, {"regions", kRegions}};

  Series alias;
  for (int i = 0; i < setup.cycles; ++i) {
    std::vector<arena::RegionInfo> twins;
    const Timer timer;
    for (const auto& region : regions) twins.push_back(must(arena->alias("rollout", region.id)));
    alias.add(timer.ms());
    for (const auto& twin : twins) must(arena->destroy(twin.id));
  }
  report(setup, "hand_over", "inside a process", "ms", alias, extra);

  int sockets[2];
  check(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "making a socket pair");
  const pid_t child = ::fork();
  check(child >= 0, "starting the other process");
  if (child == 0) {
    const std::string number = std::to_string(sockets[1]);
    const std::string divide = std::to_string(setup.divide);
    ::execl(program, program, "--device", setup.device.c_str(), "--divide", divide.c_str(),
            "--import-child", number.c_str(), static_cast<char*>(nullptr));
    std::_Exit(127);
  }
  ::close(sockets[1]);
  char word = 0;
  check(::read(sockets[0], &word, 1) == 1, "waiting for the other process");
  Series across;
  for (int i = 0; i < setup.cycles; ++i) {
    const Timer timer;
    for (const auto& region : regions) {
      const auto pages = must(arena->export_pages(region.id));
      for (std::size_t at = 0; at < pages.size(); at += kMost) {
        Batch batch;
        batch.count = std::min(kMost, pages.size() - at);
        std::copy_n(pages.begin() + static_cast<std::ptrdiff_t>(at), batch.count, batch.pages);
        const bool whole = at + batch.count == pages.size();
        batch.last = !whole ? 0 : region.id == regions.back().id ? 2 : 1;
        send_batch(sockets[0], batch);
      }
      for (const ExportedPage& page : pages) ::close(page.descriptor);
    }
    check(::read(sockets[0], &word, 1) == 1, "waiting for the import");
    across.add(timer.ms());
    check(::read(sockets[0], &word, 1) == 1, "waiting for the other process");
  }
  Batch end;
  end.last = 1;
  send_batch(sockets[0], end);
  int status = 0;
  ::waitpid(child, &status, 0);
  report(setup, "hand_over", "to another process", "ms", across, extra);
}

}  // namespace neap::bench
