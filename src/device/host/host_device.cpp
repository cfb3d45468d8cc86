#include "device/host/host_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "device/host/host_copy_queue.h"

namespace neap::device {
namespace {

// Descriptors of pages are above this number if the limit allows. The host program keeps the low
// ones, which select() and similar calls need.
constexpr int kLowestDescriptor = 4096;

Status memory_failure(std::string_view what, int error) {
  std::string message = format("{}: {}", what, system_reason(error));
  if (error == ENOMEM) message += " (mappings a process may have: vm.max_map_count)";
  if (error == EMFILE) message += " (open files a process may have: ulimit -n)";
  if (error == ENFILE) message += " (open files of the whole system: fs.file-max)";
  return Status::driver(ErrorCode::kOutOfHostMemory, std::move(message), error);
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0)
    log::debug(format("host device: open files raised to {}", limit.rlim_cur));
}

Result<int> make_page_file(Bytes size) {
  int fd = ::memfd_create("neap-page", MFD_CLOEXEC);
  if (fd < 0 && errno == EMFILE) {
    raise_descriptor_limit();
    fd = ::memfd_create("neap-page", MFD_CLOEXEC);
  }
  if (fd < 0) return memory_failure("cannot make a page", errno);
  const int high = ::fcntl(fd, F_DUPFD_CLOEXEC, kLowestDescriptor);
  if (high >= 0) {
    ::close(fd);
    fd = high;
  }
  if (::ftruncate(fd, static_cast<off_t>(size.count())) != 0) {
    const int error = errno;
    ::close(fd);
    return memory_failure(format("cannot make a page of {}", size), error);
  }
  return fd;
}

void* pointer(Address at) {
  return reinterpret_cast<void*>(at);
}
int descriptor(std::uint64_t native) {
  return static_cast<int>(native);
}

DeviceInfo info_of(const HostOptions& options) {
  DeviceInfo info;
  info.kind = Kind::kHost;
  info.ordinal = options.ordinal;
  info.name = options.name;
  info.granularity = options.granularity;
  info.capacity = options.capacity;
  info.exportable = true;
  return info;
}

class HostDeviceImpl final : public HostDevice, public HostCopyChecks {
 public:
  explicit HostDeviceImpl(const HostOptions& options)
      : HostDevice(info_of(options)), link_rate_(options.link_rate) {}
  ~HostDeviceImpl() override {
    for (const auto& [at, size] : ledger_.reservations()) ::munmap(pointer(at), size.count());
    for (const std::uint64_t native : ledger_.natives()) ::close(descriptor(native));
  }

  Status check_copy(const Copy& copy) const override { return check_copies({&copy, 1}); }
  Status copy_to_host(std::span<const Copy> copies) override {
    NEAP_TRY(check_copies(copies));
    for (const Copy& copy : copies) std::memcpy(copy.host, pointer(copy.device), copy.size.count());
    return {};
  }
  Status copy_to_device(std::span<const Copy> copies) override {
    NEAP_TRY(check_copies(copies));
    for (const Copy& copy : copies) std::memcpy(pointer(copy.device), copy.host, copy.size.count());
    return {};
  }
  Status fill(Address at, Bytes size, std::uint8_t value) override {
    NEAP_TRY(check_copy({at, nullptr, size}));
    if (value == 0 && punch(at, size)) return {};
    std::memset(pointer(at), value, size.count());
    return {};
  }
  Result<std::unique_ptr<CopyQueue>> make_copy_queue() override {
    return make_host_copy_queue(*this, link_rate_);
  }
  Status synchronize() override { return {}; }
  Status synchronize(StreamId) override { return {}; }

 private:
  Result<Address> find_addresses(Bytes size, Bytes alignment) override {
    const std::uint64_t align = std::max(alignment, info_.granularity).count();
    // Reserve more to find an aligned address, and return the excess at once.
    const std::size_t room = size.count() + align;
    void* start =
        ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return memory_failure(format("cannot reserve {}", size), errno);
    const Address low = reinterpret_cast<Address>(start);
    const Address at = (low + align - 1) / align * align;
    if (at > low) ::munmap(start, at - low);
    const Address end = at + size.count();
    if (low + room > end) ::munmap(pointer(end), low + room - end);
    return at;
  }
  Status drop_addresses(Address at, Bytes size) override {
    if (::munmap(pointer(at), size.count()) != 0)
      return memory_failure("cannot give an address range back", errno);
    return {};
  }
  Result<std::uint64_t> make_page(Bytes size) override {
    NEAP_TRY_ASSIGN(const int fd, make_page_file(size));
    return static_cast<std::uint64_t>(fd);
  }
  Status drop_page(std::uint64_t native) override {
    ::close(descriptor(native));
    return {};
  }
  Status bind(Address at, Bytes size, std::uint64_t native) override {
    if (::mmap(pointer(at), size.count(), PROT_NONE, MAP_SHARED | MAP_FIXED, descriptor(native),
               0) == MAP_FAILED)
      return memory_failure(format("cannot map {}", size), errno);
    return {};
  }
  Status open(Address at, Bytes size) override {
    if (::mprotect(pointer(at), size.count(), PROT_READ | PROT_WRITE) != 0)
      return memory_failure(format("cannot give access to {}", size), errno);
    return {};
  }
  Status unbind(Address at, Bytes size) override {
    if (::mmap(pointer(at), size.count(), PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
      return memory_failure(format("cannot unmap {}", size), errno);
    return {};
  }
  Status pin(void*, Bytes) override { return {}; }
  Status unpin(void*) override { return {}; }
  Result<int> give_out(std::uint64_t native) override {
    const int copy = ::fcntl(descriptor(native), F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return memory_failure("cannot export a page", errno);
    return copy;
  }
  Result<std::uint64_t> take_in(int fd, Bytes size) override {
    struct stat status {};
    if (::fstat(fd, &status) != 0)
      return Status(ErrorCode::kInvalidArgument,
                    format("descriptor {} is not open: {}", fd, system_reason(errno)));
    if (!S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) != size.count())
      return Status(ErrorCode::kInvalidArgument,
                    format("descriptor {} is not a page of {}", fd, size));
    const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, kLowestDescriptor);
    const int kept = copy >= 0 ? copy : ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (kept < 0) return memory_failure("cannot import a page", errno);
    return static_cast<std::uint64_t>(kept);
  }

  /// Zeroes the range by freeing its memory, so that no page is touched. False if the system
  /// cannot.
  bool punch(Address at, Bytes size) {
    const std::lock_guard lock(mutex_);
    bool done = true;
    ledger_.for_each_mapping(at, size, [&](Address start, const Ledger::Mapping& mapping) {
      const Address from = std::max(start, at);
      const Address to = std::min(start + mapping.size.count(), at + size.count());
      done =
          done && ::fallocate(descriptor(ledger_.native_of(mapping.page)),
                              FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                              static_cast<off_t>(from - start), static_cast<off_t>(to - from)) == 0;
    });
    return done;
  }

  const double link_rate_;
};

}  // namespace

Result<std::unique_ptr<HostDevice>> make_host_device(HostOptions options) {
  const std::uint64_t unit = options.granularity.count();
  const auto system_page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (unit < system_page || (unit & (unit - 1)) != 0)
    return Status(ErrorCode::kInvalidArgument,
                  format("granularity {} is not a power of two of at least {}", options.granularity,
                         Bytes(system_page)));
  options.capacity = round_down(options.capacity, options.granularity);
  return std::unique_ptr<HostDevice>(std::make_unique<HostDeviceImpl>(options));
}

}  // namespace neap::device
