#include <unistd.h>

#include <array>
#include <condition_variable>
#include <map>
#include <thread>

#include "base/format.h"
#include "base/log.h"
#include "hook/hand_over.h"
#include "hook/hand_over_message.h"
#include "hook/hand_over_socket.h"

namespace neap::hook {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kOwnerGrace = std::chrono::seconds(10);  ///< added to the wait sent to the owner
constexpr std::uint64_t kMostPages = 1U << 20;

enum class Phase { kAsked, kArriving, kHeld, kLeaving, kFailed };

struct Borrowed {
  Phase phase = Phase::kAsked;
  int device = 0;
  std::string tag;
  std::vector<arena::ExportedPage> pages;
  std::vector<Descriptor> descriptors;
  Loan loan;
  Status failure;
  bool abandoned = false;  ///< take() has given up; a later loan is returned
};

bool read_numbers(const Json& list, std::array<std::uint64_t, 3>& numbers) {
  if (!list.is_array() || list.size() != numbers.size()) return false;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (!list[i].is_number_unsigned()) return false;
    numbers[i] = list[i].get<std::uint64_t>();
  }
  return true;
}

}  // namespace

struct HandOverGuest::Impl {
  explicit Impl(Descriptor socket) : wire(std::move(socket)) {}
  Wire wire;
  std::thread thread;

  std::mutex mutex;  ///< guards the following members
  Revoked revoked;
  std::condition_variable changed;
  std::map<std::string, Borrowed> borrowed;
  bool owner_gone = false;

  void run();
  Status handle(Message& message);
  Status arrive(const std::string& name, Message& message);
  void settle(const std::string& name, Result<Loan> outcome);
  void let_go(const std::string& name);
  void owner_is_gone();
  [[nodiscard]] static Status unmap(device::Address at);
};

HandOverGuest::HandOverGuest(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<HandOverGuest>> HandOverGuest::open(const std::string& path,
                                                           Revoked revoked) {
  NEAP_TRY(Runtime::get().usable());
  NEAP_TRY_ASSIGN(Descriptor socket, connect_to(path));
  if (!peer_is_same_user(socket.get())) {
    return Status(ErrorCode::kUnsupported, "The exporter at " + path + " runs as another user");
  }
  auto impl = std::make_unique<Impl>(std::move(socket));
  impl->revoked = std::move(revoked);
  NEAP_TRY(
      impl->wire.send({{"type", "hello"}, {"version", kHandOverVersion}, {"pid", ::getpid()}}));
  NEAP_TRY_ASSIGN(const Message welcome, impl->wire.receive());
  if (welcome.text("type") != "welcome") {
    return Status(ErrorCode::kCorrupt, "The process at " + path + " is not an exporter");
  }
  impl->thread = std::thread([self = impl.get()] { self->run(); });
  return std::unique_ptr<HandOverGuest>(new HandOverGuest(std::move(impl)));
}

HandOverGuest::~HandOverGuest() {
  if (const Status s = close(); !s.ok()) log::warn(s.message());
}

Status HandOverGuest::Impl::unmap(device::Address at) {
  NEAP_TRY_ASSIGN(
      const Place place,
      Runtime::get().find(reinterpret_cast<void*>(at)));  // NOLINT(performance-no-int-to-ptr)
  return Runtime::get().free(place, Runtime::Pages::kKeep);
}

void HandOverGuest::Impl::run() {
  while (true) {
    auto message = wire.receive();
    const Status outcome = message.ok() ? handle(*message) : message.status();
    if (outcome.ok()) continue;
    if (outcome.code() != ErrorCode::kCancelled) log::warn("Hand-over: " + outcome.message());
    wire.shut();
    owner_is_gone();
    return;
  }
}

Status HandOverGuest::Impl::handle(Message& message) {
  const std::string type = message.text("type");
  const std::string name = message.text("name");
  if (type == "lend") return arrive(name, message);
  if (type == "revoke") {
    let_go(name);
    return {};
  }
  if (type == "refuse") {
    const auto code = static_cast<ErrorCode>(message.number("code"));
    const bool known = code > ErrorCode::kOk && code <= ErrorCode::kInternal;
    settle(name, Status(known ? code : ErrorCode::kInternal, message.text("message")));
    return {};
  }
  return {ErrorCode::kCorrupt, format("\"{}\" is not a message of an exporter", type)};
}

Status HandOverGuest::Impl::arrive(const std::string& name, Message& message) {
  const Json& pages = message.body["pages"];
  if (!pages.is_array() || pages.size() != message.descriptors.size()) {
    return {ErrorCode::kCorrupt, "a loan has a different number of pages and descriptors"};
  }
  std::vector<arena::ExportedPage> whole;
  std::vector<Descriptor> descriptors;
  int device = 0;
  std::string tag;
  {
    const std::lock_guard lock(mutex);
    const auto it = borrowed.find(name);
    if (it == borrowed.end() || it->second.phase == Phase::kHeld) {
      return {ErrorCode::kCorrupt, format("\"{}\" was sent without a request", name)};
    }
    Borrowed& entry = it->second;
    entry.phase = Phase::kArriving;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      std::array<std::uint64_t, 3> numbers{};
      if (!read_numbers(pages[i], numbers) || entry.pages.size() >= kMostPages) {
        return {ErrorCode::kCorrupt, "a page of a loan is not [offset, size, lead]"};
      }
      entry.pages.push_back(
          {message.descriptors[i].get(), Bytes(numbers[0]), Bytes(numbers[1]), Bytes(numbers[2])});
      entry.descriptors.push_back(std::move(message.descriptors[i]));
    }
    if (message.body["last"] != true) return {};
    whole.swap(entry.pages);
    descriptors.swap(entry.descriptors);
    device = entry.device;
    tag = entry.tag;
  }
  settle(name, [&]() -> Result<Loan> {
    NEAP_TRY_ASSIGN(const OpenDevice on, Runtime::get().open(device));
    NEAP_TRY_ASSIGN(const auto region, on.arena->import_pages(tag, whole));
    return Loan{region.address, region.size, message.number("generation")};
  }());
  return {};
}

/// Ends a request with its loan or its failure.
void HandOverGuest::Impl::settle(const std::string& name, Result<Loan> outcome) {
  bool goes_back = false;
  {
    const std::lock_guard lock(mutex);
    const auto it = borrowed.find(name);
    if (it == borrowed.end() || it->second.phase == Phase::kHeld) return;
    Borrowed& entry = it->second;
    const bool arrived = entry.phase == Phase::kArriving;
    goes_back = arrived && (entry.abandoned || !outcome.ok());
    if (entry.abandoned) {
      borrowed.erase(it);
    } else if (outcome.ok()) {
      entry.phase = Phase::kHeld;
      entry.loan = *outcome;
    } else {
      entry.phase = Phase::kFailed;
      entry.failure = Status(outcome.status());
    }
    changed.notify_all();
  }
  if (!goes_back) return;
  if (outcome.ok()) {
    if (const Status s = unmap(outcome->address); !s.ok()) log::warn(s.message());
  }
  (void)wire.send({{"type", "drop"}, {"name", name}});  // fails if the owner is gone
}

void HandOverGuest::Impl::let_go(const std::string& name) {
  device::Address at = 0;
  Revoked tell;
  {
    const std::lock_guard lock(mutex);
    tell = revoked;
    const auto it = borrowed.find(name);
    if (it != borrowed.end() && it->second.phase == Phase::kHeld) {
      it->second.phase = Phase::kLeaving;
      at = it->second.loan.address;
    } else if (it != borrowed.end() && it->second.phase == Phase::kLeaving) {
      return;  // another thread is dropping the region and tells the owner
    }
  }
  if (at != 0) {
    if (tell) tell(name, at, false);
    if (const Status s = unmap(at); !s.ok()) log::error("Hand-over: " + s.message());
  }
  // Send before removing the entry: a following take() must not reach the owner first.
  (void)wire.send({{"type", "drop"}, {"name", name}});
  if (at == 0) return;
  const std::lock_guard lock(mutex);
  borrowed.erase(name);
  changed.notify_all();
}

void HandOverGuest::Impl::owner_is_gone() {
  std::vector<std::pair<std::string, device::Address>> lost;
  Revoked tell;
  {
    const std::lock_guard lock(mutex);
    owner_gone = true;
    tell = revoked;
    for (auto& [name, entry] : borrowed) {
      if (entry.phase == Phase::kHeld) {
        lost.emplace_back(name, entry.loan.address);
      } else if (entry.phase != Phase::kLeaving) {
        entry.phase = Phase::kFailed;
        entry.failure = {ErrorCode::kCancelled, "The exporter is gone"};
      }
    }
    changed.notify_all();
  }
  if (!tell) return;
  for (const auto& [name, at] : lost) tell(name, at, true);
}

Result<Loan> HandOverGuest::take(const std::string& name, int device, const std::string& tag,
                                 std::chrono::milliseconds wait) {
  Impl& self = *impl_;
  {
    std::unique_lock lock(self.mutex);
    const auto leaving = [&] {
      const auto it = self.borrowed.find(name);
      return it != self.borrowed.end() && it->second.phase == Phase::kLeaving;
    };
    if (leaving() && std::this_thread::get_id() == self.thread.get_id()) {
      return Status(ErrorCode::kBusy, format("\"{}\" is being revoked", name));
    }
    self.changed.wait(lock, [&] { return !leaving(); });
    if (self.owner_gone) return Status(ErrorCode::kCancelled, "The exporter is gone");
    if (self.borrowed.count(name) != 0) {
      return Status(ErrorCode::kAlreadyExists, format("\"{}\" is taken already", name));
    }
    Borrowed& entry = self.borrowed[name];
    entry.device = device;
    entry.tag = tag;
  }
  Status asked = self.wire.send(
      {{"type", "take"}, {"name", name}, {"wait_ms", static_cast<std::uint64_t>(wait.count())}});
  std::unique_lock lock(self.mutex);
  if (!asked.ok()) {
    self.borrowed.erase(name);
    return asked;
  }
  const auto settled = [&] {
    const auto it = self.borrowed.find(name);
    return it == self.borrowed.end() || it->second.phase == Phase::kHeld ||
           it->second.phase == Phase::kLeaving || it->second.phase == Phase::kFailed;
  };
  if (!self.changed.wait_until(lock, Clock::now() + wait + kOwnerGrace, settled)) {
    self.borrowed[name].abandoned = true;
    return Status(ErrorCode::kTimeout, format("The exporter did not answer for \"{}\"", name));
  }
  const auto it = self.borrowed.find(name);
  if (it == self.borrowed.end() || it->second.phase == Phase::kLeaving) {
    return Status(ErrorCode::kBusy, format("\"{}\" was revoked as soon as it was lent", name));
  }
  if (it->second.phase == Phase::kHeld) return it->second.loan;
  Status failure = std::move(it->second.failure);
  self.borrowed.erase(it);
  return std::move(failure).with_context(format("taking \"{}\"", name));
}

Status HandOverGuest::drop(const std::string& name) {
  Impl& self = *impl_;
  device::Address at = 0;
  bool tell = false;
  {
    std::unique_lock lock(self.mutex);
    const auto it = self.borrowed.find(name);
    if (it == self.borrowed.end() || it->second.phase == Phase::kAsked ||
        it->second.phase == Phase::kArriving || it->second.phase == Phase::kFailed) {
      return {ErrorCode::kNotFound, format("\"{}\" is not taken", name)};
    }
    if (it->second.phase == Phase::kLeaving) {
      if (std::this_thread::get_id() == self.thread.get_id()) {
        return {ErrorCode::kBusy,
                format("\"{}\" is being revoked; it is dropped when the callback returns", name)};
      }
      self.changed.wait(lock, [&] { return self.borrowed.count(name) == 0; });
      return {};
    }
    it->second.phase = Phase::kLeaving;
    at = it->second.loan.address;
    tell = !self.owner_gone;
  }
  Status outcome = Impl::unmap(at);
  if (tell) (void)self.wire.send({{"type", "drop"}, {"name", name}});
  const std::lock_guard lock(self.mutex);
  self.borrowed.erase(name);
  self.changed.notify_all();
  return outcome;
}

Status HandOverGuest::close() {
  Impl& self = *impl_;
  if (!self.thread.joinable()) return {};
  if (std::this_thread::get_id() == self.thread.get_id()) {
    return {ErrorCode::kBusy, "An importer cannot be closed from its own callback"};
  }
  std::vector<std::string> names;
  {
    const std::lock_guard lock(self.mutex);
    self.revoked = nullptr;
    for (const auto& [name, entry] : self.borrowed) names.push_back(name);
  }
  Status outcome;
  for (const std::string& name : names) {
    Status dropped = drop(name);
    if (!dropped.ok() && dropped.code() != ErrorCode::kNotFound && outcome.ok()) {
      outcome = std::move(dropped);
    }
  }
  self.wire.shut();
  self.thread.join();
  return outcome;
}

}  // namespace neap::hook
