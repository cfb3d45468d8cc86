#include "bench/bench.h"

#include <sys/statvfs.h>
#include <sys/utsname.h>

#include <cmath>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "arena/host_memory.h"
#include "base/file.h"
#include "base/format.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/driver.h"
#include "device/host/host_device.h"

namespace neap::bench {
namespace {

constexpr Bytes kFull = 64_GiB;
/// Size of all weights in the backup cases at full size, and the number of such sets that exist at
/// once.
constexpr Bytes kWeights(15'300'000'000);
constexpr std::uint64_t kSets = 2;
constexpr Bytes kHostDefault = 1_GiB;
constexpr Bytes kQuickHost = 128_MiB;
constexpr Bytes kQuickCuda = 8_GiB;
/// Small enough that scaled-down weights keep their proportions.
constexpr Bytes kHostGranularity = 64_KiB;

std::uint64_t divisor(Bytes full, Bytes room) {
  if (room.is_zero()) return full.count();
  return std::max<std::uint64_t>(1, (full.count() + room.count() - 1) / room.count());
}

}  // namespace

double Series::at(double quantile) const {
  std::vector<double> sorted = values_;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.empty()) return 0;
  return sorted[static_cast<std::size_t>(
      std::lround(quantile * static_cast<double>(sorted.size() - 1)))];
}

double Row::reached() const {
  if (limit.empty() || measured.empty() || measured.median() <= 0 || limit.median() <= 0) return 0;
  const double share = measured.median() / limit.median();
  return better == Better::kMore ? share : 1 / share;
}

Json to_json(const Row& row) {
  const auto spread = [](const Series& series) {
    return Json{{"median", series.median()},
                {"low", series.at(0)},
                {"high", series.at(1)},
                {"count", series.count()}};
  };
  Json line;
  line["case"] = row.name;
  line["what"] = row.what;
  line["unit"] = row.unit;
  line["better"] = row.better == Better::kLess ? "less" : "more";
  line.update(spread(row.measured));
  if (!row.limit.empty()) {
    line["limit"] = spread(row.limit);
    line["limit"]["from"] = row.limit_from;
    line["reached"] = row.reached();
  }
  if (row.detail.is_object()) line.update(row.detail);
  return line;
}

Result<Bench> Bench::make(Settings settings, Sink sink) {
  if (settings.device != "auto" && settings.device != "cuda" && settings.device != "cpu")
    return Status(ErrorCode::kInvalidArgument,
                  format("a device called \"{}\"; it can be auto, cuda or cpu", settings.device));
  if (settings.device == "auto") {
    const auto count = device::cuda_device_count();
    settings.device = count.ok() && *count > 0 ? "cuda" : "cpu";
  }
  const bool cuda = settings.device == "cuda";
  if (settings.cycles < 0)
    return Status(ErrorCode::kInvalidArgument, "a negative number of cycles");
  if (settings.cycles == 0) settings.cycles = settings.quick ? 3 : cuda ? 20 : 7;
  if (settings.disk_folder.empty()) settings.disk_folder = temporary_folder();

  const Bytes host = arena::available_host_memory();
  Bytes device_room = host / 4;
  if (cuda) {
    NEAP_TRY_ASSIGN(const auto card, device::make_cuda_device(0));
    NEAP_TRY_ASSIGN(const device::MemoryInfo memory, card->memory());
    device_room = memory.free;
  }
  const Bytes most = device_room / 10 * 9;
  const bool asked = !settings.size.is_zero();
  Bytes size = asked            ? std::min(settings.size, kFull)
               : settings.quick ? (cuda ? kQuickCuda : kQuickHost)
                                : (cuda ? kFull : kHostDefault);
  if (asked && settings.size > most)
    return Status(
        ErrorCode::kDoesNotFit,
        format("a size of {} needs about {}, but {}; choose --size {}MiB or less", settings.size,
               settings.size / 9 * 10,
               cuda ? format("{} is free on the GPU", device_room)
                    : format("on the CPU that may be a quarter ({}) of the {} that is "
                             "available, because backups and copies lie in host memory, too",
                             device_room, host),
               most.count() >> 20));
  if (size > most) size = most;
  Bench bench(std::move(settings), std::move(sink));
  bench.divide_ = divisor(kFull, size);
  // Backups are in host memory. On the CPU device, the pages are also in host memory.
  const Bytes each = host / 2 / (kSets * (cuda ? 1 : 2));
  bench.weights_divide_ = std::max(bench.divide_, divisor(kWeights, each));
  if (asked && bench.weights_divide_ > bench.divide_)
    return Status(ErrorCode::kDoesNotFit,
                  format("a size of {} needs about {} of host memory for backups, but {} is "
                         "available; choose a smaller --size",
                         size, kWeights / bench.divide_ * (2 * kSets * (cuda ? 1 : 2)), host));
  return bench;
}

Bytes Bench::scaled(Bytes full, Bytes least) const {
  return std::max(round_up(full / divide_, cuda() ? 2_MiB : kHostGranularity), least);
}

Result<std::unique_ptr<device::Device>> open_device(std::string_view name, Bytes host_capacity) {
  if (name == "cuda") {
    NEAP_TRY_ASSIGN(auto card, device::make_cuda_device(0));
    return std::unique_ptr<device::Device>(std::move(card));
  }
  device::HostOptions options;
  options.capacity = host_capacity;
  options.granularity = kHostGranularity;
  NEAP_TRY_ASSIGN(auto host, device::make_host_device(options));
  return std::unique_ptr<device::Device>(std::move(host));
}

Result<std::unique_ptr<device::Device>> Bench::open_device() const {
  return bench::open_device(settings_.device, std::max(140_GiB / divide_, 64_MiB));
}

Status Bench::need_host(Bytes bytes, std::string_view why) const {
  const Bytes available = arena::available_host_memory();
  if (bytes <= available) return {};
  return {ErrorCode::kDoesNotFit,
          format("{} needs {} of host memory, but {} is available; choose a smaller --size", why,
                 bytes, available)};
}

Status Bench::need_disk(Bytes bytes) const {
  struct statvfs disk {};
  if (::statvfs(disk_folder().c_str(), &disk) != 0)
    return {ErrorCode::kIo, format("{} cannot be used: {}", disk_folder(), system_reason(errno))};
  const Bytes free(disk.f_bavail * disk.f_frsize);
  if (bytes <= free) return {};
  return {ErrorCode::kDoesNotFit,
          format("the disk rows need {} in {}, but {} is free; choose another --disk-folder or a "
                 "smaller --size",
                 bytes, disk_folder(), free)};
}

Json Bench::environment() const {
  Json out;
  out["device"] = cuda() ? "cuda" : "cpu";
  if (const auto device = open_device(); device.ok()) {
    out["name"] = (*device)->info().name;
    out["granularity"] = (*device)->info().granularity.count();
  }
  if (cuda()) {
    if (const auto driver = device::cuda::load_driver(); driver.ok())
      out["cuda_driver"] = (*driver)->version;
  }
  utsname system{};
  ::uname(&system);
  out["kernel"] = system.release;
  out["cores"] = std::thread::hardware_concurrency();
  out["host_memory_available"] = arena::available_host_memory().count();
  out["size"] = (kFull / divide_).count();
  out["weights"] = (kWeights / weights_divide_).count();
  out["cycles"] = cycles();
  out["unix_time"] = std::time(nullptr);
  return out;
}

}  // namespace neap::bench
