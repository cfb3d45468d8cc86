// A process's view of a few make-believe GPUs whose memory is memfd pages: real addresses, real
// contents, a real capacity. Strict where the driver is strict, so that a misuse fails here too.
//
// Threads   one lock around everything; nothing is fast on purpose.
// Failure   the driver's own result numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>

#include "driver_types.h"

namespace neap::standin {

inline constexpr std::size_t kGranularity = 2u << 20;

/// What is alive now, for leak checks. Part of the stand-in's own binary interface.
struct Live {
  std::uint64_t handles, handle_bytes, reservations, reserved_bytes, mappings;
  std::uint64_t plain_allocations, plain_bytes, streams, events, registrations, calls;
};

class Card {
 public:
  static Card& get();

  int init();
  /// Every call of the interface passes here first: counts, fails the call that a test wants to
  /// fail, and refuses before init and in a forked child.
  int enter(const char* name, bool needs_context = false);
  void fail(const std::string& name, int nth_call, int result);

  [[nodiscard]] int device_count() const { return device_count_; }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }
  std::size_t free_bytes(int device);

  int reserve(std::uint64_t* at, std::size_t size, std::size_t alignment);
  int unreserve(std::uint64_t at, std::size_t size);
  int create(std::uint64_t* handle, std::size_t size, const AllocationProperties* properties);
  int release(std::uint64_t handle);
  int retain_at(std::uint64_t* handle, std::uint64_t at);
  int map(std::uint64_t at, std::size_t size, std::size_t offset, std::uint64_t handle);
  int set_access(std::uint64_t at, std::size_t size, const AccessDescriptor* list, std::size_t n);
  int unmap(std::uint64_t at, std::size_t size);
  int export_handle(int* descriptor, std::uint64_t handle);
  int import_handle(std::uint64_t* handle, int descriptor);

  int allocate(std::uint64_t* at, std::size_t size, int device);
  int deallocate(std::uint64_t at);
  int device_of(std::uint64_t at, int* device);

  /// Copies or fills after checking that device addresses are mapped and accessible.
  int copy(std::uint64_t to, std::uint64_t from, std::size_t size, bool to_device,
           bool from_device);
  /// With the engine of `device`, which must have access.
  int fill(std::uint64_t at, std::uint8_t value, std::size_t size, int device);
  [[nodiscard]] bool is_device_address(std::uint64_t at);

  int register_host(std::uint64_t at, std::size_t size);
  int unregister_host(std::uint64_t at);
  int make_stream(std::uint64_t* stream);
  int destroy_stream(std::uint64_t stream);
  int check_stream(std::uint64_t stream);
  int make_event(std::uint64_t* event);
  int destroy_event(std::uint64_t event);
  int record_event(std::uint64_t event);
  int event_time(std::uint64_t event, double* seconds);
  Live live();

 private:
  Card();
  struct Handle {
    int descriptor;
    std::size_t size;
    int device;
    int claims;  ///< one for the owner, one for each map
    bool owned;
    bool imported;  ///< on the exporter's account, not on this card's
    bool exportable;
  };
  struct Mapping {
    std::size_t size;
    std::uint64_t handle;
    std::uint64_t users;  ///< a bit for each device that has access
  };
  struct Plain {
    std::size_t size;
    int device;
  };
  void drop_claim(std::uint64_t handle);
  /// Plain memory, or mapped and accessible to one of `users`.
  bool reachable(std::uint64_t at, std::size_t size, std::uint64_t users);

  std::recursive_mutex mutex_;
  int owner_process_ = 0;  ///< set by init
  int device_count_ = 1;
  std::size_t capacity_ = 0;
  std::uint64_t next_id_ = 0x1000;
  std::uint64_t calls_ = 0;
  std::map<std::uint64_t, std::size_t> reservations_;
  std::map<std::uint64_t, Mapping> mappings_;
  std::map<std::uint64_t, Plain> plain_;
  std::unordered_map<std::uint64_t, Handle> handles_;
  std::map<int, std::size_t> used_;
  std::map<std::uint64_t, std::size_t> registered_;
  std::set<std::uint64_t> streams_;
  std::map<std::uint64_t, double> events_;
  std::map<std::string, std::pair<int, int>> failures_;  ///< name -> calls left, result
};

inline void* pointer(std::uint64_t at) {
  return reinterpret_cast<void*>(at);  // NOLINT(performance-no-int-to-ptr)
}

/// The device of this thread's current context, or -1.
int& current_device();

}  // namespace neap::standin
