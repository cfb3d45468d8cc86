#include "base/bytes.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/status.h"

namespace neap {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array<Unit, 9> kUnits{{{"B", 1},
                                      {"KiB", 1024.0},
                                      {"MiB", 1048576.0},
                                      {"GiB", 1073741824.0},
                                      {"TiB", 1099511627776.0},
                                      {"KB", 1e3},
                                      {"MB", 1e6},
                                      {"GB", 1e9},
                                      {"TB", 1e12}}};

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

}  // namespace

std::string to_string(Bytes size) {
  const double n = static_cast<double>(size.count());
  std::array<char, 48> buffer{};
  for (std::size_t i = 4; i >= 1; --i) {
    if (n < kUnits[i].bytes) continue;
    const double value = n / kUnits[i].bytes;
    const int decimals = value == std::floor(value) ? 0 : (value >= 100 ? 1 : 2);
    std::snprintf(buffer.data(), buffer.size(), "%.*f %s", decimals, value, kUnits[i].name.data());
    return buffer.data();
  }
  std::snprintf(buffer.data(), buffer.size(), "%llu B",
                static_cast<unsigned long long>(size.count()));
  return buffer.data();
}

Result<Bytes> parse_bytes(std::string_view text) {
  const std::string_view s = trim(text);
  double value = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (error != std::errc() || value < 0 || !std::isfinite(value)) {
    return Status(
        ErrorCode::kInvalidArgument,
        "\"" + std::string(text) + "\" is not a size; write a number and a unit, as 24GiB");
  }
  const std::string_view unit = trim(s.substr(static_cast<std::size_t>(end - s.data())));
  for (const Unit& u : kUnits) {
    if (u.name != unit) continue;
    const double bytes = value * u.bytes;
    if (bytes >= 9.2e18) {
      return Status(ErrorCode::kInvalidArgument, "\"" + std::string(text) + "\" is over 8 EiB");
    }
    return Bytes(static_cast<std::uint64_t>(std::llround(bytes)));
  }
  return Status(ErrorCode::kInvalidArgument,
                unit.empty()
                    ? "\"" + std::string(text) + "\" has no unit; write it as " + std::string(s) +
                          "MiB or " + std::string(s) + "GiB"
                    : "\"" + std::string(unit) + "\" in \"" + std::string(text) +
                          "\" is not a unit; known are B, KiB, MiB, GiB, TiB, KB, MB, GB, TB");
}

}  // namespace neap
