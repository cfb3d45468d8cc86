// The interface to device memory. All code above allocates device memory only through a Device.
//
// Model     An *address range* is reserved once and keeps its address until unreserve. A *page* is one
//           physical handle, whose size is chosen at create (a multiple of the granularity). Mapping
//           binds a whole page into a reserved range. Several maps of one page alias it. A page's
//           memory is freed when the page has been released and has no map left. Contents survive
//           unmap and map while the page lives.
//
// Threads   every call from any thread; implementations have their own locks.
//
// Failure   Status, never an exception, exit or sticky flag. kOutOfDeviceMemory is a normal outcome of
//           create. A failed call has changed nothing.
//
// Cost      one driver call each, unless a comment says otherwise; sim costs a map lookup.
//
// Implementations: host/ (memfd pages in this process: real memory, real capacity), sim/ (counts only),
// cuda/ (driver VMM API, loaded at run time), fault/ (fails the k-th call of another device).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace neap::device {

using Address = std::uint64_t;  ///< a device virtual address; 0: none
enum class PageId : std::uint64_t { kNone = 0 };
enum class StreamId : std::uint64_t { kDefault = 0 };  ///< for cuda: the raw CUstream value

enum class Kind { kHost, kSim, kCuda };

struct DeviceInfo {
  Kind kind = Kind::kHost;
  int ordinal = 0;
  std::string name;         ///< "NVIDIA H200", "host memory"
  Bytes granularity;        ///< sizes and offsets of pages and maps are multiples of this
  Bytes capacity;           ///< maximum that create() provides on an otherwise unused device
  int multiprocessors = 0;  ///< of a GPU; 0 if the device has none or does not report them
  int architecture = 0;     ///< of a GPU, 90: compute capability 9.0; 0 as above
  bool exportable = false;  ///< export_page() works
  bool gpu_direct_rdma = false;
  bool touches_memory =
      true;  ///< false for sim: addresses must not be dereferenced, copies are no-ops
};

struct MemoryInfo {
  Bytes free;  ///< free memory of the device; other processes count
  Bytes total;
};

/// One contiguous copy. Device and host memory do not overlap.
struct Copy {
  Address device = 0;
  void* host = nullptr;
  Bytes size;
};

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual const DeviceInfo& info() const = 0;
  [[nodiscard]] virtual Result<MemoryInfo> memory() = 0;

  /// Reserves an address range without memory. `alignment` zero means the granularity.
  [[nodiscard]] virtual Result<Address> reserve(Bytes size, Bytes alignment) = 0;
  /// Frees a whole range. kBusy while any page is mapped in it.
  virtual Status unreserve(Address at, Bytes size) = 0;
  /// Creates one physical page of exactly `size`.
  [[nodiscard]] virtual Result<PageId> create(Bytes size) = 0;
  /// Releases the page. Its memory is freed when its last map is also removed.
  virtual Status release(PageId page) = 0;
  /// Maps the whole page at `at`, in a free part of a reserved range. The page is not accessible
  /// before set_access.
  virtual Status map(Address at, PageId page) = 0;
  /// Gives this device and every granted peer read and write access to [at, at+size). Whole pages
  /// must be mapped there.
  virtual Status set_access(Address at, Bytes size) = 0;
  /// Unmaps every page in [at, at+size). The range begins and ends at page borders and is mapped
  /// without holes.
  virtual Status unmap(Address at, Bytes size) = 0;
  /// Gives another device of this kind, by ordinal, read and write access to every page mapped
  /// here, now and later. A repeated grant or one to the device itself does nothing. kUnsupported
  /// if that device cannot access this one's memory. Cost: one driver call per page that is
  /// accessible now.
  virtual Status grant_peer(int ordinal) = 0;

  /// Blocking copies. Device memory must be mapped and accessible; host memory may be pageable
  /// (slower).
  virtual Status copy_to_host(std::span<const Copy> copies) = 0;
  virtual Status copy_to_device(std::span<const Copy> copies) = 0;
  /// Fills [at, at+size) with `value` and blocks until done.
  virtual Status fill(Address at, Bytes size, std::uint8_t value) = 0;

  /// Makes a queue of asynchronous copies; see CopyQueue. Cost: two streams on cuda, one thread on
  /// host.
  [[nodiscard]] virtual Result<std::unique_ptr<class CopyQueue>> make_copy_queue() = 0;

  /// Blocks until all work that this process submitted to the device is done. Does nothing without
  /// a GPU.
  virtual Status synchronize() = 0;
  /// Blocks until the work submitted so far on `stream` is done.
  virtual Status synchronize(StreamId stream) = 0;

  /// Pins host memory for copies. Does nothing on devices without pinning.
  virtual Status register_host(void* at, Bytes size) = 0;
  virtual Status unregister_host(void* at) = 0;

  /// Returns a file descriptor of the page for import_page in another process. The caller closes
  /// it.
  [[nodiscard]] virtual Result<int> export_page(PageId page) = 0;
  /// Imports a page that another process or device object exported. The caller keeps the descriptor.
  [[nodiscard]] virtual Result<PageId> import_page(int descriptor, Bytes size) = 0;
};

/// Asynchronous copies. Copies in both directions overlap.
///
/// Threads   one user at a time. The destructor waits.
class CopyQueue {
 public:
  virtual ~CopyQueue() = default;
  virtual Status to_host(const Copy& copy) = 0;
  virtual Status to_device(const Copy& copy) = 0;
  /// Marks the point after all copies so far in one direction; wait(mark) blocks until they are done.
  [[nodiscard]] virtual Result<std::uint64_t> mark_to_host() = 0;
  [[nodiscard]] virtual Result<std::uint64_t> mark_to_device() = 0;
  virtual Status wait(std::uint64_t mark) = 0;
  /// Copies queued from now on, in both directions, begin after the work that `stream` already has.
  /// Does nothing on a device whose work is done when it is submitted (host, sim).
  virtual Status begin_after(StreamId stream) = 0;
  /// Work given to `stream` from now on begins after the mark, which was not waited for yet. Does
  /// not block if the device has streams; host waits for the mark. The stream's waiting time is
  /// added to `account`, a small number.
  virtual Status hold_stream(StreamId stream, std::uint64_t mark, std::size_t account) = 0;
  /// Seconds that streams waited in hold_stream since the last call, by account. The result ends
  /// with the last account that waited. Blocks until these waits have ended. sim returns none.
  [[nodiscard]] virtual Result<std::vector<double>> take_held_seconds() = 0;
  /// Copies of the other direction queued from now on begin after the mark.
  virtual Status hold_other_direction(std::uint64_t mark) = 0;
  /// Device seconds from one mark to a later one of the same direction. Neither mark was waited for
  /// yet. Blocks until both are reached. sim returns 0.
  [[nodiscard]] virtual Result<double> seconds_between(std::uint64_t from, std::uint64_t to) = 0;
  /// Waits for all copies and returns the first failure of any of them.
  virtual Status drain() = 0;
};

}  // namespace neap::device
