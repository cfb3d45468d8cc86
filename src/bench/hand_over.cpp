// Sharing 15 GB: as an alias in this process, and with another process over a socket.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "arena/arena.h"
#include "base/file.h"
#include "base/format.h"
#include "bench/cases.h"

namespace neap::bench {
namespace {

using arena::Arena;
using arena::ExportedPage;

constexpr std::size_t kMost = 200;  // descriptors per message
constexpr int kRegions = 30;        // one per transformer layer

struct Batch {
  std::uint64_t count = 0;
  std::uint64_t last = 0;  ///< 1: the region is whole, 2: all regions are
  ExportedPage pages[kMost];
};

Status failed(std::string_view what) {
  return {ErrorCode::kIo, format("{}: {}", what, system_reason(errno))};
}

Status send_batch(int socket, const Batch& batch) {
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
  if (::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof batch)) return {};
  return failed("sending pages");
}

Status receive_batch(int socket, Batch& batch) {
  iovec data{&batch, sizeof batch};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMost)] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, MSG_WAITALL) != static_cast<ssize_t>(sizeof batch))
    return failed("receiving pages");
  if (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr) {
    for (std::size_t i = 0; i < batch.count; ++i)
      std::memcpy(&batch.pages[i].descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
  }
  return {};
}

Status say(int socket) {
  const char word = 'x';
  return ::write(socket, &word, 1) == 1 ? Status() : failed("answering the other process");
}
Status hear(int socket) {
  char word = 0;
  return ::read(socket, &word, 1) == 1 ? Status() : failed("waiting for the other process");
}

/// The other process. The destructor closes this end of the socket and waits for the process in
/// every case.
class Child {
 public:
  Child() = default;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (socket_ >= 0) ::close(socket_);
    if (process_ > 0) ::waitpid(process_, nullptr, 0);
  }
  Status start(std::vector<std::string> command) {
    int sockets[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return failed("making a socket pair");
    socket_ = sockets[0];
    command.push_back(std::to_string(sockets[1]));
    std::vector<char*> words;
    for (std::string& word : command) words.push_back(word.data());
    words.push_back(nullptr);
    process_ = ::fork();
    if (process_ == 0) {
      ::close(sockets[0]);
      ::execv(words[0], words.data());
      ::_exit(127);
    }
    ::close(sockets[1]);
    return process_ > 0 ? Status() : failed("starting another process");
  }
  [[nodiscard]] int socket() const { return socket_; }

 private:
  int socket_ = -1;
  pid_t process_ = -1;
};

/// Export, import, map, set access and undo, page by page: the minimum that sharing needs.
Result<double> plain(device::Device& device, Bytes each) {
  NEAP_TRY_ASSIGN(const device::Address at, device.reserve(each * kRegions, Bytes(0)));
  std::vector<device::PageId> own, imported;
  Status status;
  double ms = 0;
  for (int i = 0; i < kRegions && status.ok(); ++i) {
    auto page = device.create(each);
    status = page.status();
    if (page.ok()) own.push_back(*page);
  }
  const Timer timer;
  std::size_t mapped = 0;
  for (const device::PageId page : own) {
    if (!status.ok()) break;
    const auto descriptor = device.export_page(page);
    if (!descriptor.ok()) {
      status = descriptor.status();
      break;
    }
    const auto twin = device.import_page(*descriptor, each);
    ::close(*descriptor);
    status = twin.status();
    if (!twin.ok()) break;
    imported.push_back(*twin);
    const device::Address to = at + (each * mapped).count();
    status = device.map(to, *twin);
    if (!status.ok()) break;
    ++mapped;
    status = device.set_access(to, each);
  }
  ms = timer.ms();
  if (mapped > 0) (void)device.unmap(at, each * mapped);
  for (const device::PageId page : imported) (void)device.release(page);
  for (const device::PageId page : own) (void)device.release(page);
  (void)device.unreserve(at, each * kRegions);
  NEAP_TRY(std::move(status));
  return ms;
}

Status give_all(Arena& arena, const std::vector<arena::RegionInfo>& regions, int socket) {
  for (const auto& region : regions) {
    NEAP_TRY_ASSIGN(const auto pages, arena.export_pages(region.id));
    Status status;
    for (std::size_t at = 0; at < pages.size() && status.ok(); at += kMost) {
      Batch batch;
      batch.count = std::min(kMost, pages.size() - at);
      std::copy_n(pages.begin() + static_cast<std::ptrdiff_t>(at), batch.count, batch.pages);
      const bool whole = at + batch.count == pages.size();
      batch.last = !whole ? 0 : region.id == regions.back().id ? 2 : 1;
      status = send_batch(socket, batch);
    }
    for (const ExportedPage& page : pages) ::close(page.descriptor);
    NEAP_TRY(std::move(status));
  }
  return hear(socket);
}

}  // namespace

Status import_child(const std::string& name, int socket) {
  NEAP_TRY_ASSIGN(const auto device, open_device(name, 1_GiB));
  NEAP_TRY_ASSIGN(const auto arena, Arena::make(*device));
  NEAP_TRY(say(socket));
  for (;;) {
    std::vector<ExportedPage> pages;
    std::vector<arena::RegionInfo> regions;
    Batch batch;
    do {
      NEAP_TRY(receive_batch(socket, batch));
      pages.insert(pages.end(), batch.pages, batch.pages + batch.count);
      if (batch.last == 0) continue;
      if (pages.empty()) return {};
      auto region = arena->import_pages("rollout", pages);
      for (const ExportedPage& page : pages) ::close(page.descriptor);
      pages.clear();
      NEAP_TRY(region.status());
      regions.push_back(std::move(region).value());
    } while (batch.last != 2);
    NEAP_TRY(say(socket));
    for (const auto& region : regions) NEAP_TRY(arena->destroy(region.id));
    NEAP_TRY(say(socket));
  }
}

Status run_hand_over(Bench& bench) {
  NEAP_TRY_ASSIGN(const auto device, bench.open_device());
  if (!device->info().exportable)
    return {ErrorCode::kUnsupported, "this device exports no pages: hand-over is left out"};
  NEAP_TRY_ASSIGN(const auto arena, Arena::make(*device));
  const Bytes each = bench.scaled(512_MiB, device->info().granularity);
  std::vector<arena::RegionInfo> regions;
  for (int i = 0; i < kRegions; ++i) {
    NEAP_TRY_ASSIGN(arena::RegionInfo region, arena->create("train", each));
    regions.push_back(std::move(region));
  }
  const Json detail = {{"bytes", (each * kRegions).count()}, {"regions", kRegions}};
  Series limit;
  for (int i = 0; i <= bench.cycles(); ++i) {
    NEAP_TRY_ASSIGN(const double ms, plain(*device, each));
    if (i > 0) limit.add(ms);
  }
  const std::string from = format("export, import, map of {} pages, no socket", kRegions);

  Series alias;
  for (int i = 0; i < bench.cycles(); ++i) {
    std::vector<arena::RegionInfo> twins;
    const Timer timer;
    for (const auto& region : regions) {
      NEAP_TRY_ASSIGN(arena::RegionInfo twin, arena->alias("rollout", region.id));
      twins.push_back(std::move(twin));
    }
    alias.add(timer.ms());
    for (const auto& twin : twins) NEAP_TRY(arena->destroy(twin.id));
  }
  bench.add({"hand_over", "inside a process", "ms", Better::kLess, alias, limit, from, detail});
  if (bench.settings().import_child.empty()) return {};

  Child child;
  std::vector<std::string> command = bench.settings().import_child;
  command.insert(command.end(), {"--device", bench.settings().device, "--import-child"});
  NEAP_TRY(child.start(std::move(command)));
  NEAP_TRY(hear(child.socket()));
  Series across;
  for (int i = 0; i < bench.cycles(); ++i) {
    const Timer timer;
    NEAP_TRY(give_all(*arena, regions, child.socket()));
    across.add(timer.ms());
    NEAP_TRY(hear(child.socket()));
  }
  Batch end;
  end.last = 1;
  NEAP_TRY(send_batch(child.socket(), end));
  bench.add({"hand_over", "to another process", "ms", Better::kLess, across, limit, from, detail});
  return {};
}

}  // namespace neap::bench
