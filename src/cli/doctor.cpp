// `neap doctor`: detected hardware, libraries and settings, link speed, and advice.
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <set>
#include <thread>

#include "arena/host_memory.h"
#include "base/child_process.h"
#include "base/file.h"
#include "base/format.h"
#include "base/installation.h"
#include "base/json.h"
#include "base/process.h"
#include "bench/rates.h"
#include "cli/command.h"
#include "cli/doctor_text.h"
#include "cli/program_commands.h"
#include "cli/torch_versions.h"
#include "cli/trainer_library.h"
#include "cli/version.h"
#include "device/cuda/cuda_device.h"
#include "device/host/host_device.h"
#include "plan/rates/device_choice.h"
#include "plan/rates/rate_file.h"

namespace neap::cli {
namespace {

std::string first_line(const char* path) {
  const Result<std::string> text = read_file(path, 1_MiB);
  return text.ok() ? text->substr(0, text->find('\n')) : "";
}

// In the form "2026-11-22".
std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", &utc);
  return text.data();
}

class Doctor final : public Command {
 public:
  [[nodiscard]] std::string name() const override { return "doctor"; }
  [[nodiscard]] std::string summary() const override;
  void declare(CLI::App& app) override {
    app.add_flag("--json", json_, "print JSON instead of text");
    app.add_flag("--quick", quick_, "measure nothing");
  }
  int run() override;

 private:
  /// Loads the trainer as `neap train` does.
  Json describe_trainer();
  /// The torch version that the trainer was built with, and the versions that passed all tests.
  Json describe_torch();
  /// Preloads the hook into a program as `neap run` does. The loader names what is missing, for
  /// example a version of glibc.
  Json describe_hook();
  Json system();
  Json describe(device::Device& device);
  /// Stores the rates for plans. Several GPUs with the same name use the first one's rates.
  void keep(const std::string& gpu, const device::Rates& rates, Json& out);
  Json devices();
  static Json libraries();
  static Json environment();

  bool json_ = false;
  bool quick_ = false;
  std::vector<std::string> advice_;
  std::string no_gpu_;
  Json products_;               ///< rates of matrix products on the trainer's GPU, by type
  double issue_seconds_ = 0;    ///< the trainer's time to start an operation on it
  std::set<std::string> kept_;  ///< names of GPUs whose rates were written
};

std::string Doctor::summary() const {
  return "Show GPU, driver, link speed, host memory, libraries and settings in effect";
}

int Doctor::run() {
  Json out = Json::object();
  out["schema"] = 1;
  const Json trainer = describe_trainer();
  out["neap"] = {{"version", kVersion}, {"trainer", trainer["usable"]}};
  out["trainer"] = trainer;
  out["hook"] = describe_hook();
  out["system"] = system();
  out["devices"] = devices();
  out["libraries"] = libraries();
  out["environment"] = environment();
  out["advice"] = advice_;
  if (json_) {
    std::printf("%s\n", json_text(out, 2).c_str());
  } else {
    print_doctor(out);
  }
  return 0;
}

Json Doctor::describe_trainer() {
  const auto trainer = load_trainer();
  if (!trainer.ok()) return {{"usable", false}, {"reason", trainer.status().message()}};
  Json out = {{"usable", true},
              {"library", trainer->library.string()},
              {"libtorch", trainer->libtorch.string()},
              {"torch", describe_torch()}};
  if (quick_) return out;
  if (const auto facts = parse_json(trainer->facts(), "the trainer's facts"); facts.ok())
    out.update(*facts);
  if (out.contains("products")) products_ = out["products"];
  issue_seconds_ = out.value("issue_seconds", 0.0);
  return out;
}

Json Doctor::describe_torch() {
  Json out = {{"version", kTorchVersion}, {"tested_on", nullptr}};
  std::string all;
  for (const TestedTorch& tested : kTestedTorch) {
    if (tested.version == minor_version(kTorchVersion)) out["tested_on"] = tested.where;
    out["tested"][std::string(tested.version)] = tested.where;
    all += format("{}{} ({})", all.empty() ? "" : ", ", tested.version, tested.where);
  }
  if (out["tested_on"].is_null())
    advice_.push_back(
        format("The trainer is built with torch {}, which was not tested. Tested: {}. "
               "Run make test with this torch before you rely on it.",
               kTorchVersion, all));
  return out;
}

Json Doctor::describe_hook() {
  const auto file = find_library(kHookLibrary, kHookLibraryVariable);
  if (!file.ok()) return {{"usable", false}, {"reason", file.status().message()}};
  std::string preload = "LD_PRELOAD=" + file->string();
  if (const char* others = std::getenv("LD_PRELOAD")) preload += format(":{}", others);
  auto program = ChildProcess::start(
      {.words = {"echo", "loaded"}, .environment = std::vector<std::string>{preload}});
  if (!program.ok()) return {{"usable", false}, {"reason", program.status().message()}};
  std::string text;
  while (true) {
    pollfd out{(*program)->out(), POLLIN, 0};
    (void)::poll(&out, 1, -1);
    if (!(*program)->read(text).ok()) break;
  }
  if (text == "loaded\n" && (*program)->recent_errors().empty())
    return {{"usable", true}, {"library", file->string()}};
  const std::string reason = format("{} does not load{}", file->string(), (*program)->last_words());
  advice_.push_back(reason + "\n    Build Neap on this system, or install it again.");
  return {{"usable", false}, {"reason", reason}};
}

Json Doctor::system() {
  utsname name{};
  ::uname(&name);
  const Bytes available = arena::available_host_memory();
  rlimit locked{}, files{};
  ::getrlimit(RLIMIT_MEMLOCK, &locked);
  ::getrlimit(RLIMIT_NOFILE, &files);
  const std::string maps = first_line("/proc/sys/vm/max_map_count");
  struct statvfs disk {};
  const std::string folder = temporary_folder();
  const Bytes disk_free =
      ::statvfs(folder.c_str(), &disk) == 0 ? Bytes(disk.f_bavail * disk.f_frsize) : Bytes(0);
  if (available < 8_GiB) {
    advice_.push_back(format(
        "Only {} of host memory is available: tags kept on the host need as much as they hold.",
        available));
  }
  if (std::strtoull(maps.c_str(), nullptr, 10) < 65530) {
    advice_.push_back("vm.max_map_count is " + maps +
                      "; thousands of regions need 65530 (sysctl -w vm.max_map_count=65530).");
  }
  return {{"kernel", std::string(name.sysname) + " " + name.release},
          {"machine", name.machine},
          {"glibc", ::gnu_get_libc_version()},
          {"cores", std::thread::hardware_concurrency()},
          {"host_memory", machine_memory().count()},
          {"host_memory_available", available.count()},
          {"huge_pages", first_line("/sys/kernel/mm/transparent_hugepage/enabled")},
          {"memlock_limit",
           locked.rlim_cur == RLIM_INFINITY ? Json("unlimited") : Json(locked.rlim_cur)},
          {"open_files_limit", files.rlim_cur},
          {"max_map_count", maps},
          {"temporary_folder", folder},
          {"temporary_folder_free", disk_free.count()}};
}

Json Doctor::describe(device::Device& device) {
  const device::DeviceInfo& info = device.info();
  Json out = {
      {"name", info.name}, {"ordinal", info.ordinal}, {"granularity", info.granularity.count()}};
  if (const auto memory = device.memory(); memory.ok()) {
    out["memory"] = memory->total.count();
    out["memory_free"] = memory->free.count();
  }
  out["exportable"] = info.exportable;
  out["gpu_direct_rdma"] = info.gpu_direct_rdma;
  if (quick_) return out;
  const auto rates = bench::measure_rates(device);
  if (!rates.ok()) {
    out["error"] = rates.status().message();
    advice_.push_back("A test copy failed: " + rates.status().message());
    return out;
  }
  out["to_host_gbps"] = rates->to_host / 1e9;
  out["to_device_gbps"] = rates->to_device / 1e9;
  out["both_ways_gbps"] = rates->both / 1e9;
  out["memory_gbps"] = rates->memory / 1e9;
  out["remap_ms_per_gib"] = rates->remap * 1e3 * static_cast<double>((1_GiB).count());
  if (info.kind != device::Kind::kCuda) return out;
  if (rates->to_host < 20e9) {
    advice_.push_back(
        format("{} copies {:.1f} GB/s to the host: less than PCIe Gen4 x16 gives. Is the card "
               "in a full slot?",
               info.name, rates->to_host / 1e9));
  }
  keep(info.name, *rates, out);
  return out;
}

void Doctor::keep(const std::string& gpu, const device::Rates& rates, Json& out) {
  if (!kept_.insert(gpu).second) return;
  plan::MeasuredRates record{gpu, today(), rates, 0, 0, 0, issue_seconds_};
  if (products_.is_object()) {
    record.half_flops = products_.value("bfloat16", 0.0);
    record.single_flops = products_.value("float32", 0.0);
    record.fp8_flops = products_.value("fp8", 0.0);
  }
  if (const auto file = plan::save_rates(record); file.ok()) {
    out["rates_file"] = file->string();
  } else {
    advice_.push_back("Plans cannot use what was measured: " + file.status().message());
  }
}

Json Doctor::devices() {
  Json out = Json::array();
  const auto count = device::cuda_device_count();
  if (!count.ok()) {
    no_gpu_ = count.status().message();
  } else {
    for (int i = 0; i < *count; ++i) {
      auto device = device::make_cuda_device(i);
      if (device.ok()) {
        out.push_back(describe(**device));
      } else {
        out.push_back({{"ordinal", i}, {"error", device.status().message()}});
        advice_.push_back(format("GPU {} cannot be used: {}", i, device.status().message()));
      }
    }
    if (*count == 0) no_gpu_ = "the driver sees no GPU";
  }
  if (!no_gpu_.empty()) advice_.push_back("No GPU: " + no_gpu_ + ". Everything runs on the CPU.");
  device::HostOptions options;
  options.capacity = 256_MiB;
  if (auto host = device::make_host_device(options); host.ok()) {
    out.push_back(describe(**host));
    // Rates are measured on a small CPU device. A run's device has the size that the planner
    // assumes.
    const auto planned = plan::choose_device({.kind = "cpu"}, {}, plan::Purpose::kPlan);
    if (planned.ok())
      out.back()["memory"] = out.back()["memory_free"] = planned->target.capacity.count();
  }
  return out;
}

Json Doctor::libraries() {
  Json out = Json::object();
  for (const char* file :
       {"libcuda.so.1", "libcudart.so.13", "libcudart.so.12", "libnccl.so.2", "libtorch_cpu.so"}) {
    void* handle = ::dlopen(file, RTLD_LAZY | RTLD_LOCAL);
    link_map* where = nullptr;
    const bool found = handle != nullptr && ::dlinfo(handle, RTLD_DI_LINKMAP, &where) == 0;
    out[file] = found ? Json(where->l_name) : Json(nullptr);
  }
  return out;
}

Json Doctor::environment() {
  Json out = Json::object();
  for (const char* name :
       {"NEAP_LOG", "NEAP_PROGRESS", "NEAP_LIBCUDA", "NEAP_LIBNVRTC", "NEAP_TORCH_ROOT",
        "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "LD_PRELOAD", "LD_LIBRARY_PATH",
        "CUDA_VISIBLE_DEVICES", "CUDA_MODULE_LOADING", "OMP_NUM_THREADS", "NCCL_NVLS_ENABLE",
        "TMS_INIT_ENABLE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID"}) {
    if (const char* value = std::getenv(name); value != nullptr) out[name] = value;
  }
  return out;
}

}  // namespace

std::unique_ptr<Command> make_doctor_command() {
  return std::make_unique<Doctor>();
}

}  // namespace neap::cli
