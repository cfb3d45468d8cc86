// Benchmarks of Neap. Each compares with the limit that the same machine showed in the same run.
//
// Model     A case opens its own device, checks contents, measures, and passes rows to the sink. A
//           row is a series of times or rates. It may also have the series of its limit: a plain
//           loop over driver calls, a bare copy or a plain file. Full sizes suit one H200 (64 GiB,
//           weights of a 7B model). One number scales them down to fit.
// Threads   one bench at a time in one thread; cases start their own threads.
// Failure   Status; a failed case does not stop the others.
// Cost      minutes at full size, seconds at 1/512.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "device/device.h"

namespace neap::bench {

class Timer {
 public:
  [[nodiscard]] double ms() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Repeated measurements of one quantity.
class Series {
 public:
  Series() = default;
  explicit Series(double value) : values_{value} {}
  void add(double value) { values_.push_back(value); }
  [[nodiscard]] bool empty() const { return values_.empty(); }
  [[nodiscard]] std::size_t count() const { return values_.size(); }
  /// 0 is the minimum, 0.5 the median, 1 the maximum. Returns 0 without measurements.
  [[nodiscard]] double at(double quantile) const;
  [[nodiscard]] double median() const { return at(0.5); }

 private:
  std::vector<double> values_;
};

/// GB (10^9 bytes) per second.
[[nodiscard]] inline double rate(Bytes bytes, double ms) {
  return static_cast<double>(bytes.count()) / 1e6 / ms;
}

enum class Better { kLess, kMore };

struct Row {
  std::string name;  ///< name of the case or of a variant
  std::string what;
  std::string unit;  ///< "ms", "GB/s", "ns", "us", "M/s"
  Better better = Better::kLess;
  Series measured;
  Series limit;            ///< empty: this row is a limit, or has none
  std::string limit_from;  ///< description of the limit
  Json detail = Json::object();

  /// 1 at the limit, above 1 if Neap is faster than the limit; 0 without a limit.
  [[nodiscard]] double reached() const;
};
[[nodiscard]] Json to_json(const Row& row);

struct Settings {
  std::string device = "auto";      ///< "cuda", "cpu", or "auto" for the available one
  Bytes size;                       ///< of the largest tag; zero: 64 GiB, or what fits
  int cycles = 0;                   ///< zero: 20 on a GPU, 7 on the host, 3 when quick
  bool quick = false;               ///< small sizes, for a quick look
  std::vector<std::string> filter;  ///< parts of case names; empty: all
  std::string disk_folder;          ///< empty: TMPDIR or /tmp
  /// Starts a program that calls import_child(); --device NAME --import-child SOCKET are appended.
  /// Empty: the case is skipped.
  std::vector<std::string> import_child;
  std::string hook_library;  ///< empty: its rows are skipped
};

class Bench {
 public:
  using Sink = std::function<void(const Row&)>;
  /// Chooses device and sizes. kDoesNotFit if memory is too small for the requested size.
  [[nodiscard]] static Result<Bench> make(Settings settings, Sink sink);

  [[nodiscard]] const Settings& settings() const { return settings_; }
  [[nodiscard]] bool cuda() const { return settings_.device == "cuda"; }
  [[nodiscard]] int cycles() const { return settings_.cycles; }
  [[nodiscard]] std::uint64_t divide() const { return divide_; }
  [[nodiscard]] std::uint64_t weights_divide() const { return weights_divide_; }
  /// Scales a size for an H200 to this machine; at least `least`.
  [[nodiscard]] Bytes scaled(Bytes full, Bytes least = 64_KiB) const;
  [[nodiscard]] const std::string& disk_folder() const { return settings_.disk_folder; }
  [[nodiscard]] Result<std::unique_ptr<device::Device>> open_device() const;
  /// Fails with a clear message before a case starts to allocate.
  Status need_host(Bytes bytes, std::string_view why) const;
  Status need_disk(Bytes bytes) const;
  void add(const Row& row) const { sink_(row); }
  /// Device, driver, kernel, processor, memory and sizes.
  [[nodiscard]] Json environment() const;

 private:
  Bench(Settings settings, Sink sink) : settings_(std::move(settings)), sink_(std::move(sink)) {}
  Settings settings_;
  Sink sink_;
  std::uint64_t divide_ = 1;
  std::uint64_t weights_divide_ = 1;
};

struct Case {
  std::string_view name;
  std::string_view says;  ///< description in one line
  Status (*run)(Bench& bench);
  bool needs_cuda = false;
};
/// All cases in the order they run: limits first.
[[nodiscard]] std::span<const Case> cases();
/// Cases that the filter selects and the device supports. kInvalidArgument if a filter matches
/// none.
[[nodiscard]] Result<std::vector<const Case*>> wanted_cases(const Bench& bench);

[[nodiscard]] Result<std::unique_ptr<device::Device>> open_device(std::string_view name,
                                                                  Bytes host_capacity);

/// Code of the importing process: imports everything sent over the socket until it closes.
Status import_child(const std::string& device, int socket);

}  // namespace neap::bench
