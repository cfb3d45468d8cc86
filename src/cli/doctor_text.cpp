#include "cli/doctor_text.h"

#include <cstdio>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/format.h"
#include "cli/version.h"

namespace neap::cli {
namespace {

std::string size_text(const Json& value) {
  return to_string(Bytes(value.get<std::uint64_t>()));
}

void print_line(std::string_view key, const std::string& value) {
  std::printf("  %-22s %s\n", std::string(key).c_str(), value.c_str());
}

void print_system(const Json& s) {
  std::printf("\nSystem\n");
  print_line("kernel", s["kernel"].get<std::string>() + " on " + s["machine"].get<std::string>());
  print_line("glibc", s["glibc"].get<std::string>());
  print_line("cores", s["cores"].dump());
  print_line("host memory", size_text(s["host_memory"]) + ", " +
                                size_text(s["host_memory_available"]) + " available");
  print_line("huge pages", s["huge_pages"].get<std::string>());
  print_line("memlock limit",
             s["memlock_limit"].is_string() ? "unlimited" : size_text(s["memlock_limit"]));
  print_line("open files, mappings",
             s["open_files_limit"].dump() + ", " + s["max_map_count"].get<std::string>());
  print_line("temporary folder", s["temporary_folder"].get<std::string>() + ", " +
                                     size_text(s["temporary_folder_free"]) + " free");
}

void print_device(const Json& d) {
  std::printf("\nDevice %s\n", d["name"].get<std::string>().c_str());
  if (d.contains("memory"))
    print_line("memory", size_text(d["memory"]) + ", " + size_text(d["memory_free"]) + " free");
  print_line("granularity", size_text(d["granularity"]));
  print_line("export, GPUDirect RDMA", std::string(d["exportable"].get<bool>() ? "yes" : "no") +
                                           ", " +
                                           (d["gpu_direct_rdma"].get<bool>() ? "yes" : "no"));
  if (!d.contains("to_host_gbps")) return;
  print_line("link",
             format("{:.1f} GB/s to the host, {:.1f} to the device, {:.1f} both ways at once",
                    d["to_host_gbps"].get<double>(), d["to_device_gbps"].get<double>(),
                    d["both_ways_gbps"].get<double>()));
  print_line("device memory",
             format("{:.0f} GB/s, {:.3g} ms to map a GiB again", d["memory_gbps"].get<double>(),
                    d["remap_ms_per_gib"].get<double>()));
  if (d.contains("rates_file"))
    print_line("throughput for plans", "kept in " + d["rates_file"].get<std::string>());
}

// Prints the kernels that the trainer measured and chose, if it did.
void print_kernels(const Json& trainer) {
  if (trainer.contains("products")) {
    std::printf("\nMatrix products\n");
    for (const auto& [dtype, flops] : trainer["products"].items())
      print_line(dtype, format("{:.3g} TFLOP/s", flops.get<double>() / 1e12));
  }
  if (trainer.contains("issue_seconds"))
    print_line("an operation",
               format("{:.3g} µs to start it", trainer["issue_seconds"].get<double>() * 1e6));
  if (trainer.contains("own_kernels"))
    print_line("Neap's kernels", trainer["own_kernels"].get<std::string>());
  if (trainer.contains("attention")) {
    std::printf("\nAttention kernels\n");
    for (const auto& [use, kernel] : trainer["attention"].items())
      print_line(use, kernel.get<std::string>());
  }
}

}  // namespace

void print_doctor(const Json& out) {
  std::printf("neap %s%s\n", kVersion,
              out["neap"]["trainer"].get<bool>() ? "" : " (without the trainer)");
  const Json& trainer = out["trainer"];
  if (trainer["usable"].get<bool>()) {
    print_line("trainer", trainer["library"].get<std::string>());
    print_line("libtorch", trainer["libtorch"].get<std::string>());
    const Json& torch = trainer["torch"];
    std::string tested;
    for (const auto& [version, where] : torch["tested"].items())
      tested += (tested.empty() ? "" : ", ") + version + " on " + where.get<std::string>();
    print_line("built with torch", torch["version"].get<std::string>() + "; tested: " + tested);
  } else {
    print_line("no trainer", trainer["reason"].get<std::string>());
  }
  const Json& hook = out["hook"];
  print_line(hook["usable"].get<bool>() ? "hook" : "no hook",
             hook[hook["usable"].get<bool>() ? "library" : "reason"].get<std::string>());
  print_system(out["system"]);
  for (const Json& device : out["devices"])
    if (device.contains("name")) print_device(device);
  print_kernels(trainer);
  std::printf("\nLibraries\n");
  for (const auto& [name, where] : out["libraries"].items())
    print_line(name, where.is_null() ? "not found" : where.get<std::string>());
  std::printf("\nSettings in effect\n");
  for (const auto& [name, value] : out["environment"].items())
    print_line(name, value.get<std::string>());
  if (out["environment"].empty()) std::printf("  no relevant variable is set\n");
  std::printf("\nAdvice\n");
  for (const Json& a : out["advice"]) std::printf("  - %s\n", a.get<std::string>().c_str());
  if (out["advice"].empty()) std::printf("  no advice\n");
}

}  // namespace neap::cli
