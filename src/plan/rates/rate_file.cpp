#include "plan/rates/rate_file.h"

#include <unistd.h>

#include <array>
#include <cctype>
#include <cmath>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "device/cuda/driver.h"

namespace neap::plan {
namespace {

namespace fs = std::filesystem;

constexpr int kSchema = 2;

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// 13000 means CUDA 13.0; 0 without a driver.
int driver_version() {
  const auto driver = device::cuda::load_driver();
  return driver.ok() ? (*driver)->version : 0;
}

std::string file_word(const std::string& name) {
  std::string word = name;
  for (char& c : word)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '-') c = '_';
  return word;
}

// The fields of the record, used for reading and writing.
std::array<std::pair<const char*, double*>, 9> numbers(MeasuredRates& r) {
  return {{{"to_host", &r.device.to_host},
           {"to_device", &r.device.to_device},
           {"both", &r.device.both},
           {"memory", &r.device.memory},
           {"remap", &r.device.remap},
           {"half_flops", &r.half_flops},
           {"single_flops", &r.single_flops},
           {"fp8_flops", &r.fp8_flops},
           {"issue_seconds", &r.issue_seconds}}};
}

Status read_record(const Json& json, MeasuredRates& rates) {
  const auto wrong = [](const std::string& what) { return Status(ErrorCode::kCorrupt, what); };
  if (!json.is_object() || !json.contains("schema")) return wrong("holds no record of rates");
  if (json["schema"] != kSchema) return wrong(format("has schema {}", json_text(json["schema"])));
  const auto differs = [&](const char* key, const Json& here) {
    return !json.contains(key) || json[key] != here;
  };
  if (differs("gpu", rates.gpu) || differs("host", host_name()))
    return wrong("is of another GPU or host");
  if (differs("driver", driver_version())) return wrong("is of another driver");
  if (!json.contains("date") || !json["date"].is_string()) return wrong("has no date");
  rates.date = json["date"].get<std::string>();
  for (const auto& [key, value] : numbers(rates)) {
    if (value == &rates.fp8_flops && !json.contains(key)) continue;  // an older record
    if (!json.contains(key) || !json[key].is_number()) return wrong(format("lacks \"{}\"", key));
    *value = json[key].get<double>();
    const bool may_be_zero = value != &rates.device.to_host && value != &rates.device.to_device &&
                             value != &rates.device.both && value != &rates.device.memory;
    if (!std::isfinite(*value) || *value < 0 || (*value == 0 && !may_be_zero))
      return wrong(format("has \"{}\" {}", key, json_text(json[key])));
  }
  return {};
}

}  // namespace

Result<fs::path> rate_file(const std::string& gpu) {
  NEAP_TRY_ASSIGN(const fs::path folder, user_cache_folder());
  return folder / "rates" / format("{}@{}.json", file_word(gpu), file_word(host_name()));
}

Result<fs::path> save_rates(const MeasuredRates& rates) {
  NEAP_TRY_ASSIGN(const fs::path file, rate_file(rates.gpu));
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  if (error)
    return Status(ErrorCode::kIo,
                  format("Cannot create {}: {}", file.parent_path().string(), error.message()));
  Json json = {{"schema", kSchema},
               {"gpu", rates.gpu},
               {"host", host_name()},
               {"driver", driver_version()},
               {"date", rates.date}};
  MeasuredRates copy = rates;
  for (const auto& [key, value] : numbers(copy)) json[key] = *value;
  NEAP_TRY(write_file_atomic(file, json_text(json, 1) + "\n"));
  return file;
}

Result<std::optional<MeasuredRates>> load_rates(const std::string& gpu) {
  const Result<fs::path> file = rate_file(gpu);
  std::error_code error;
  if (!file.ok() || !fs::exists(*file, error)) return std::optional<MeasuredRates>();
  NEAP_TRY_ASSIGN(const std::string text, read_file(*file, read_limits::kRates));
  NEAP_TRY_ASSIGN(const Json json, parse_json(text, file->string()));
  MeasuredRates rates;
  rates.gpu = gpu;
  if (const Status status = read_record(json, rates); !status.ok())
    return Status(status.code(), format("{} {}", file->string(), status.message()));
  return std::optional(std::move(rates));
}

}  // namespace neap::plan
