// Measurements of Neap, each with the limit that the same machine showed in the same run.
//
// Model     A case opens its own device, checks contents, measures, and hands rows to the sink. A row is a series of
//           times or rates and, where there is one, the series of the limit: a plain loop over the driver's calls, a
//           bare copy, a plain file. Sizes are those of one H200 (64 GiB, weights of a 7B model) divided by one
//           number that makes them fit.
// Threads   one bench at a time in one thread; cases start threads of their own.
// Failure   Status; a case that fails leaves the others to run.
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

/// Repeated measurements of one thing.
class Series {
 public:
  Series() = default;
  explicit Series(double value) : values_{value} {}
  void add(double value) { values_.push_back(value); }
  [[nodiscard]] bool empty() const { return values_.empty(); }
  [[nodiscard]] std::size_t count() const { return values_.size(); }
  /// 0 is the smallest, 0.5 the median, 1 the largest; 0 when there is nothing.
  [[nodiscard]] double at(double quantile) const;
  [[nodiscard]] double median() const { return at(0.5); }

 private:
  std::vector<double> values_;
};

/// GB (10^9 bytes) a second.
[[nodiscard]] inline double rate(Bytes bytes, double ms) {
  return static_cast<double>(bytes.count()) / 1e6 / ms;
}

enum class Better { kLess, kMore };

struct Row {
  std::string name;  ///< of the case, or of a variant of it
  std::string what;
  std::string unit;  ///< "ms", "GB/s", "ns", "us", "M/s"
  Better better = Better::kLess;
  Series measured;
  Series limit;            ///< empty: this row is a limit itself, or has none
  std::string limit_from;  ///< what the limit is, in words
  Json detail = Json::object();

  /// 1 at the limit, above it when Neap is better than the plain way; 0 without a limit.
  [[nodiscard]] double reached() const;
};
[[nodiscard]] Json to_json(const Row& row);

struct Settings {
  std::string device = "auto";      ///< "cuda", "cpu", or what is there
  Bytes size;                       ///< of the largest tag; zero: 64 GiB or what fits
  int cycles = 0;                   ///< zero: 20 on a GPU, 7 on the host, 3 when quick
  bool quick = false;               ///< small sizes, for a look
  std::vector<std::string> filter;  ///< parts of case names; empty: all
  std::string disk_folder;          ///< empty: TMPDIR or /tmp
  /// Starts a program that calls import_child(); --device NAME --import-child SOCKET are added. Empty: left out.
  std::vector<std::string> import_child;
  std::string hook_library;  ///< empty: its rows are left out
};

class Bench {
 public:
  using Sink = std::function<void(const Row&)>;
  /// Chooses device and sizes. kDoesNotFit when memory is short for the size that was asked for.
  [[nodiscard]] static Result<Bench> make(Settings settings, Sink sink);

  [[nodiscard]] const Settings& settings() const { return settings_; }
  [[nodiscard]] bool cuda() const { return settings_.device == "cuda"; }
  [[nodiscard]] int cycles() const { return settings_.cycles; }
  [[nodiscard]] std::uint64_t divide() const { return divide_; }
  [[nodiscard]] std::uint64_t weights_divide() const { return weights_divide_; }
  /// What an H200 would get, divided; at least `least`.
  [[nodiscard]] Bytes scaled(Bytes full, Bytes least = 64_KiB) const;
  [[nodiscard]] const std::string& disk_folder() const { return settings_.disk_folder; }
  [[nodiscard]] Result<std::unique_ptr<device::Device>> open_device() const;
  /// A clear refusal before a case begins to take memory.
  Status need_host(Bytes bytes, std::string_view why) const;
  Status need_disk(Bytes bytes) const;
  void add(const Row& row) const { sink_(row); }
  /// Device, driver, kernel, processor, memory, sizes.
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
  std::string_view says;  ///< one line
  Status (*run)(Bench& bench);
  bool needs_cuda = false;
};
/// In the order they run: limits first.
[[nodiscard]] std::span<const Case> cases();
/// Those that the filter and the device let run. kInvalidArgument when a filter fits none.
[[nodiscard]] Result<std::vector<const Case*>> wanted_cases(const Bench& bench);

[[nodiscard]] Result<std::unique_ptr<device::Device>> open_device(std::string_view name,
                                                                  Bytes host_capacity);

/// The other process of the hand-over: imports what comes over the socket, until its end.
Status import_child(const std::string& device, int socket);

}  // namespace neap::bench
