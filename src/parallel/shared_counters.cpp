#include "parallel/shared_counters.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <utility>

#include "base/descriptor.h"
#include "base/file.h"
#include "base/format.h"

namespace neap::parallel {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr int kNames = 16;  // names to try

Status failed(const char* what, const std::string& name) {
  return {ErrorCode::kIo, format("{} shared memory {}: {}", what, name, system_reason(errno))};
}

std::size_t pages_for(std::size_t count) {
  const std::size_t bytes = count * sizeof(SharedCounters::Counter);
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

Result<SharedCounters> SharedCounters::make(std::size_t count) {
  std::random_device random;
  SharedCounters out;
  out.bytes_ = pages_for(count);
  for (int tried = 0; tried < kNames; ++tried) {
    out.name_ = format("/neap-{}-{}{}", ::getpid(), random(), random());
    const Descriptor file(
        ::shm_open(out.name_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (file.get() < 0) {
      if (errno == EEXIST) continue;
      return failed("making", out.name_);
    }
    out.named_ = true;
    // Allocated now: with a full /dev/shm the first access would otherwise kill the process.
    if (const int error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(out.bytes_));
        error != 0) {
      errno = error;
      return failed("making", out.name_);
    }
    NEAP_TRY(out.map(file.get()));
    return out;
  }
  return failed("making", out.name_);
}

Result<SharedCounters> SharedCounters::open(const std::string& name, std::size_t count) {
  SharedCounters out;
  out.name_ = name;
  out.bytes_ = pages_for(count);
  const Descriptor file(::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
  if (file.get() < 0) return failed("opening", name);
  struct stat found {};
  if (::fstat(file.get(), &found) != 0) return failed("opening", name);
  if (static_cast<std::size_t>(found.st_size) != out.bytes_ || found.st_uid != ::geteuid())
    return Status(ErrorCode::kInvalidArgument,
                  format("shared memory {} is not this job's: {} bytes", name, found.st_size));
  NEAP_TRY(out.map(file.get()));
  return out;
}

Status SharedCounters::map(int file) {
  void* at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) return failed("mapping", name_);
  counters_ = static_cast<Counter*>(at);
  return {};
}

SharedCounters::SharedCounters(SharedCounters&& other) noexcept
    : name_(std::move(other.name_)),
      named_(std::exchange(other.named_, false)),
      counters_(std::exchange(other.counters_, nullptr)),
      bytes_(other.bytes_) {}

SharedCounters::~SharedCounters() {
  remove_name();
  if (counters_ != nullptr) ::munmap(counters_, bytes_);
}

void SharedCounters::remove_name() {
  if (std::exchange(named_, false)) ::shm_unlink(name_.c_str());
}

}  // namespace neap::parallel
