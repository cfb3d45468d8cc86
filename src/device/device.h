// The interface to device memory. Everything above asks a Device and nothing else for memory.
//
// Model     An *address range* is reserved once and keeps its address until unreserve. A *page* is one
//           physical handle of a size chosen at create (a multiple of the granularity). map binds a
//           whole page into a reserved range; several maps of one page alias it. A page's memory is
//           freed when the page has been released and no map of it is left. Contents survive unmap and
//           map while the page lives.
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

using Address = std::uint64_t;  ///< a device virtual address; 0 is none
enum class PageId : std::uint64_t { kNone = 0 };
enum class StreamId : std::uint64_t { kDefault = 0 };  ///< for cuda: the raw CUstream value

enum class Kind { kHost, kSim, kCuda };

struct DeviceInfo {
  Kind kind = Kind::kHost;
  int ordinal = 0;
  std::string name;         ///< "NVIDIA H200", "host memory"
  Bytes granularity;        ///< sizes and offsets of pages and maps are multiples of this
  Bytes capacity;           ///< the most that create can give if nothing else uses the device
  int multiprocessors = 0;  ///< of a GPU; 0 where the device has none or does not say
  bool exportable = false;  ///< export_page works
  bool gpu_direct_rdma = false;
  bool touches_memory =
      true;  ///< false for sim: addresses must not be dereferenced, copies are no-ops
};

struct MemoryInfo {
  Bytes free;  ///< as the device counts it, including other processes
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

  /// A range of addresses without memory. `alignment` zero means the granularity.
  [[nodiscard]] virtual Result<Address> reserve(Bytes size, Bytes alignment) = 0;
  /// Frees a whole range. kBusy while any page is mapped in it.
  virtual Status unreserve(Address at, Bytes size) = 0;
  /// One physical page of exactly `size`.
  [[nodiscard]] virtual Result<PageId> create(Bytes size) = 0;
  /// Releases the page. Its memory is freed when the last map is gone as well.
  virtual Status release(PageId page) = 0;
  /// Maps the whole page at `at`, in a free part of a reserved range. Not accessible before set_access.
  virtual Status map(Address at, PageId page) = 0;
  /// Makes [at, at+size), mapped by whole pages, readable and writable by this device and every
  /// granted peer.
  virtual Status set_access(Address at, Bytes size) = 0;
  /// Unmaps every page in [at, at+size), which begins and ends at page borders and is mapped without
  /// holes.
  virtual Status unmap(Address at, Bytes size) = 0;
  /// Gives another device of this kind, by ordinal, read and write access to every page mapped here,
  /// now and later. A second grant, or one to itself, does nothing. kUnsupported if that device cannot
  /// access this one's memory. Cost: one driver call for each page that is accessible now.
  virtual Status grant_peer(int ordinal) = 0;

  /// Blocking copies. Device memory must be mapped and accessible; host memory may be pageable
  /// (slower).
  virtual Status copy_to_host(std::span<const Copy> copies) = 0;
  virtual Status copy_to_device(std::span<const Copy> copies) = 0;
  /// Fills [at, at+size) with `value`; blocks until done.
  virtual Status fill(Address at, Bytes size, std::uint8_t value) = 0;

  /// A queue of asynchronous copies; see CopyQueue. Cost: two streams on cuda, one thread on host.
  [[nodiscard]] virtual Result<std::unique_ptr<class CopyQueue>> make_copy_queue() = 0;

  /// Blocks until all work that this process submitted to the device is done. No-op without a GPU.
  virtual Status synchronize() = 0;
  /// Blocks until the work submitted so far on `stream` is done.
  virtual Status synchronize(StreamId stream) = 0;

  /// Pins host memory for copies. No-op on devices without pinning.
  virtual Status register_host(void* at, Bytes size) = 0;
  virtual Status unregister_host(void* at) = 0;

  /// A file descriptor of the page for import_page in another process. The caller closes it.
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
  /// Copies that are queued from now on, in both directions, begin after what `stream` was given so far. Nothing to do
  /// on a device whose work is done when it is submitted (host, sim).
  virtual Status begin_after(StreamId stream) = 0;
  /// What `stream` is given from now on begins after the mark, which was not waited for yet. Does not block where the
  /// device has streams; host: waits for the mark. The time that the stream waits counts for `account`, a small number.
  virtual Status hold_stream(StreamId stream, std::uint64_t mark, std::size_t account) = 0;
  /// Seconds that streams waited in hold_stream since the last call, by account (none behind the last that waited).
  /// Blocks until these waits are over. sim: none.
  [[nodiscard]] virtual Result<std::vector<double>> take_held_seconds() = 0;
  /// Copies of the other direction that are queued from now on begin after the mark, as hold_stream's work does.
  virtual Status hold_other_direction(std::uint64_t mark) = 0;
  /// Seconds of the device from one mark to a later one of the same direction, neither of them waited for yet. Blocks
  /// until both are reached. sim: 0.
  [[nodiscard]] virtual Result<double> seconds_between(std::uint64_t from, std::uint64_t to) = 0;
  /// Waits for everything; returns the first failure of any copy.
  virtual Status drain() = 0;
};

}  // namespace neap::device
