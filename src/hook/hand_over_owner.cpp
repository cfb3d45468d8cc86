#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <list>
#include <map>
#include <set>
#include <thread>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "hook/c_struct.h"
#include "hook/hand_over.h"
#include "hook/hand_over_message.h"
#include "hook/hand_over_socket.h"

namespace neap::hook {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMostGuests = 256;
constexpr auto kRetry = std::chrono::milliseconds(10);

struct Guest {
  explicit Guest(Descriptor socket) : wire(std::move(socket)) {}
  Wire wire;
  std::set<std::string> loans;
  bool greeted = false;
};

struct Offer {
  const void* address = nullptr;
  std::chrono::milliseconds revoke_wait{0};
  std::uint64_t listener = 0;
  bool withdrawn = false;  ///< no new loans
};

struct Request {
  std::shared_ptr<Guest> guest;
  std::string name;
  Clock::time_point deadline;
};

}  // namespace

struct HandOverOwner::Impl {
  std::string path;
  OwnerSocket socket;
  Descriptor wake;
  std::thread thread;
  std::atomic<bool> closing{false};

  /// Held while a loan is made, from the export to the last message. A revocation waits for it, so
  /// that a guest is not asked to unmap a region that it has not received yet.
  std::mutex lending;
  std::mutex mutex;  ///< guards the following members
  std::condition_variable loans_changed;
  std::map<std::string, Offer> offers;
  std::list<std::shared_ptr<Guest>> guests;
  std::list<Request> waiting;

  void run();
  void accept_guest();
  void forget(const std::shared_ptr<Guest>& guest);
  [[nodiscard]] Status handle(const std::shared_ptr<Guest>& guest, const Message& message);
  void serve_waiting();
  [[nodiscard]] Status lend(const Request& request);
  Status revoke(const std::string& name, std::chrono::milliseconds wait);
  [[nodiscard]] std::uint64_t loans_of(const std::string& name) const;
};

HandOverOwner::HandOverOwner(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<HandOverOwner>> HandOverOwner::open(const std::string& path) {
  NEAP_TRY(Runtime::get().usable());
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  NEAP_TRY(impl->socket.open(path));
  impl->wake = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (impl->wake.get() < 0) {
    return Status(ErrorCode::kIo,
                  "Cannot create an eventfd for hand-overs: " + system_reason(errno));
  }
  impl->thread = std::thread([self = impl.get()] { self->run(); });
  return std::unique_ptr<HandOverOwner>(new HandOverOwner(std::move(impl)));
}

HandOverOwner::~HandOverOwner() {
  if (const Status s = close(Duration(0)); !s.ok()) log::warn(s.message());
}

std::uint64_t HandOverOwner::Impl::loans_of(const std::string& name) const {
  std::uint64_t count = 0;
  for (const auto& guest : guests) count += guest->loans.count(name);
  return count;
}

void HandOverOwner::Impl::run() {
  std::vector<pollfd> polled;
  std::vector<std::shared_ptr<Guest>> of;
  while (!closing.load()) {
    polled.assign({{socket.descriptor(), POLLIN, 0}, {wake.get(), POLLIN, 0}});
    of.clear();
    bool anyone_waits = false;
    {
      const std::lock_guard lock(mutex);
      for (const auto& guest : guests) {
        polled.push_back({guest->wire.descriptor(), POLLIN, 0});
        of.push_back(guest);
      }
      anyone_waits = !waiting.empty();
    }
    if (::poll(polled.data(), polled.size(), anyone_waits ? int{kRetry.count()} : -1) < 0 &&
        errno != EINTR) {
      log::error("Hand-overs at " + path + " end: " + system_reason(errno));
      return;
    }
    if ((polled[1].revents & POLLIN) != 0) {
      std::uint64_t count = 0;
      (void)!::read(wake.get(), &count, sizeof count);
    }
    for (std::size_t i = 0; i < of.size(); ++i) {
      if (polled[i + 2].revents == 0) continue;
      auto message = of[i]->wire.receive();
      const Status outcome = message.ok() ? handle(of[i], *message) : message.status();
      if (!outcome.ok()) {
        if (outcome.code() != ErrorCode::kCancelled) {
          log::warn("Disconnecting an importer: " + outcome.message());
        }
        forget(of[i]);
      }
    }
    if ((polled[0].revents & POLLIN) != 0) accept_guest();
    serve_waiting();
  }
}

void HandOverOwner::Impl::accept_guest() {
  Descriptor accepted(::accept4(socket.descriptor(), nullptr, nullptr, SOCK_CLOEXEC));
  if (accepted.get() < 0) return;
  if (!peer_is_same_user(accepted.get())) {
    log::warn("Rejecting an importer of another user");
    return;
  }
  const std::lock_guard lock(mutex);
  if (guests.size() < kMostGuests) guests.push_back(std::make_shared<Guest>(std::move(accepted)));
}

void HandOverOwner::Impl::forget(const std::shared_ptr<Guest>& guest) {
  const std::lock_guard lock(mutex);
  guest->wire.shut();
  guest->loans.clear();
  guests.remove(guest);
  waiting.remove_if([&](const Request& request) { return request.guest == guest; });
  loans_changed.notify_all();
}

Status HandOverOwner::Impl::handle(const std::shared_ptr<Guest>& guest, const Message& message) {
  const std::string type = message.text("type");
  if (type == "hello") {
    const std::uint64_t version = message.number("version");
    if (version != kHandOverVersion) {
      return {ErrorCode::kCorrupt, format("protocol version {} is not supported", version)};
    }
    guest->greeted = true;
    return guest->wire.send(
        {{"type", "welcome"}, {"version", kHandOverVersion}, {"pid", ::getpid()}});
  }
  if (!guest->greeted) return {ErrorCode::kCorrupt, "the first message is not hello"};
  const std::string name = message.text("name");
  if (name.empty()) return {ErrorCode::kCorrupt, format("\"{}\" has no name", type)};
  const std::lock_guard lock(mutex);
  if (type == "take") {
    const auto wait = std::min<std::uint64_t>(message.number("wait_ms"), 86'400'000);
    waiting.push_back({guest, name, Clock::now() + std::chrono::milliseconds(wait)});
  } else if (type == "drop") {
    guest->loans.erase(name);
    loans_changed.notify_all();
  } else {
    return {ErrorCode::kCorrupt, format("\"{}\" is not a message of an importer", type)};
  }
  return {};
}

void HandOverOwner::Impl::serve_waiting() {
  std::list<Request> requests;
  {
    const std::lock_guard lock(mutex);
    requests.swap(waiting);
  }
  for (auto it = requests.begin(); it != requests.end();) {
    Status outcome = lend(*it);
    const bool again = outcome.code() == ErrorCode::kBusy || outcome.code() == ErrorCode::kNotFound;
    if (!outcome.ok() && again && Clock::now() < it->deadline) {
      ++it;
      continue;
    }
    if (!outcome.ok()) {
      // If the send fails, the next poll finds the guest gone.
      (void)it->guest->wire.send({{"type", "refuse"},
                                  {"name", it->name},
                                  {"code", static_cast<int>(outcome.code())},
                                  {"message", outcome.message()}});
    }
    it = requests.erase(it);
  }
  const std::lock_guard lock(mutex);
  waiting.splice(waiting.begin(), requests);
}

Status HandOverOwner::Impl::lend(const Request& request) {
  const std::lock_guard lending_now(lending);
  const void* address = nullptr;
  {
    const std::lock_guard lock(mutex);
    const auto offer = offers.find(request.name);
    if (offer == offers.end() || offer->second.withdrawn) {
      return {ErrorCode::kNotFound, format("\"{}\" is not offered", request.name)};
    }
    address = offer->second.address;
  }
  NEAP_TRY_ASSIGN(const Place place, region_at(address));
  auto exported = place.on.arena->export_pages(place.region.id);
  if (!exported.ok()) {
    return Status(exported.status())
        .with_context(format("lending \"{}\" (tag \"{}\")", request.name, place.region.tag));
  }
  std::vector<Descriptor> closers;
  for (const auto& page : *exported) closers.emplace_back(page.descriptor);
  {
    const std::lock_guard lock(mutex);
    request.guest->loans.insert(request.name);
  }
  const auto& pages = *exported;
  Status sent;
  for (std::size_t begin = 0; begin < pages.size() && sent.ok(); begin += kMostDescriptors) {
    const std::size_t end = std::min(pages.size(), begin + kMostDescriptors);
    Json list = Json::array();
    std::vector<int> descriptors;
    for (std::size_t i = begin; i < end; ++i) {
      list.push_back({pages[i].offset.count(), pages[i].size.count(), pages[i].lead.count()});
      descriptors.push_back(pages[i].descriptor);
    }
    sent = request.guest->wire.send({{"type", "lend"},
                                     {"name", request.name},
                                     {"size", place.region.size.count()},
                                     {"generation", place.region.generation},
                                     {"pages", std::move(list)},
                                     {"last", end == pages.size()}},
                                    descriptors);
  }
  if (!sent.ok()) {
    const std::lock_guard lock(mutex);
    request.guest->loans.erase(request.name);
  }
  return sent;
}

Status HandOverOwner::Impl::revoke(const std::string& name, std::chrono::milliseconds wait) {
  const auto deadline = Clock::now() + wait;
  {
    const std::lock_guard lending_now(lending);
    const std::lock_guard lock(mutex);
    for (const auto& guest : guests) {
      if (guest->loans.count(name) == 0) continue;
      // If the send fails, shut the connection; the thread then removes the guest.
      if (!guest->wire.send({{"type", "revoke"}, {"name", name}}).ok()) guest->wire.shut();
    }
  }
  std::unique_lock lock(mutex);
  if (loans_changed.wait_until(lock, deadline, [&] { return loans_of(name) == 0; })) return {};
  return {ErrorCode::kBusy,
          format("{} importers still map \"{}\" after {} ms", loans_of(name), name, wait.count())};
}

Status HandOverOwner::offer(const std::string& name, const void* address, Duration revoke_wait) {
  NEAP_TRY(require(!name.empty(), "An offer needs a name"));
  NEAP_TRY_ASSIGN(const Place place, region_at(address));
  if (!place.on.device->info().exportable) {
    return {ErrorCode::kUnsupported, format("Memory of device {} ({}) cannot be exported",
                                            place.on.ordinal, place.on.device->info().name)};
  }
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->offers.count(name) != 0) {
      return {ErrorCode::kAlreadyExists, format("\"{}\" is already offered", name)};
    }
    impl_->offers[name] = {address, revoke_wait, 0, false};
  }
  const auto at = place.region.address;
  const std::uint64_t listener = Runtime::get().add_callbacks(
      place.region.tag, {[self = impl_.get(), name, at, revoke_wait](const auto& region) -> Status {
                           if (region.address != at) return {};
                           return self->revoke(name, revoke_wait);
                         },
                         nullptr});
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->offers[name].listener = listener;
  }
  const std::uint64_t one = 1;
  (void)!::write(impl_->wake.get(), &one, sizeof one);
  return {};
}

Status HandOverOwner::withdraw(const std::string& name, Duration revoke_wait) {
  std::uint64_t listener = 0;
  {
    const std::lock_guard lock(impl_->mutex);
    const auto it = impl_->offers.find(name);
    if (it == impl_->offers.end()) {
      return {ErrorCode::kNotFound, format("\"{}\" is not offered", name)};
    }
    it->second.withdrawn = true;
    listener = it->second.listener;
  }
  Status outcome = impl_->revoke(name, revoke_wait);
  {
    const std::lock_guard lock(impl_->mutex);
    if (!outcome.ok()) {
      impl_->offers[name].withdrawn = false;
      return outcome;
    }
    impl_->offers.erase(name);
  }
  return Runtime::get().remove_callbacks(listener);
}

Result<std::uint64_t> HandOverOwner::guests(const std::string& name) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->offers.count(name) == 0) {
    return Status(ErrorCode::kNotFound, format("\"{}\" is not offered", name));
  }
  return impl_->loans_of(name);
}

Status HandOverOwner::close(Duration revoke_wait) {
  if (impl_->closing.load()) return {};
  const auto deadline = Clock::now() + revoke_wait;
  std::vector<std::pair<std::string, std::uint64_t>> offers;
  {
    const std::lock_guard lock(impl_->mutex);
    for (auto& [name, offer] : impl_->offers) {
      offer.withdrawn = true;
      offers.emplace_back(name, offer.listener);
    }
  }
  Status outcome;
  for (const auto& [name, listener] : offers) {
    const auto left = std::chrono::duration_cast<Duration>(deadline - Clock::now());
    Status revoked = impl_->revoke(name, std::max(left, Duration(0)));
    if (outcome.ok()) outcome = std::move(revoked);
    if (const Status s = Runtime::get().remove_callbacks(listener); !s.ok()) log::warn(s.message());
  }
  impl_->closing.store(true);
  const std::uint64_t one = 1;
  (void)!::write(impl_->wake.get(), &one, sizeof one);
  impl_->thread.join();
  impl_->socket.close();
  const std::lock_guard lock(impl_->mutex);
  for (const auto& guest : impl_->guests) guest->wire.shut();
  return outcome;
}

}  // namespace neap::hook
