#include "report/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/file.h"
#include "base/format.h"

namespace neap::report {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr std::size_t kHeadBytes = 12, kTailBytes = 4;

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit)
      value = (value & 1u) != 0 ? (value >> 1) ^ 0x82f63b78u : value >> 1;
    table[i] = value;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kTable = make_table();

template <class Word>
void put_fixed(std::string& out, Word word) {
  for (std::size_t i = 0; i < sizeof word; ++i)
    out.push_back(static_cast<char>((word >> (8 * i)) & 0xffu));
}
template <class Word>
Word get_fixed(std::string_view in) {
  Word word = 0;
  for (std::size_t i = 0; i < sizeof word; ++i)
    word |= static_cast<Word>(static_cast<Word>(static_cast<unsigned char>(in[i])) << (8 * i));
  return word;
}

// Wire types of protocol buffers.
enum class Wire : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}
void put_key(std::string& out, std::uint32_t field, Wire wire) {
  put_varint(out, field << 3 | static_cast<std::uint32_t>(wire));
}
void put_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  put_key(out, field, Wire::kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}
void put_double(std::string& out, std::uint32_t field, double value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  put_key(out, field, Wire::kFixed64);
  put_fixed(out, bits);
}
void put_float(std::string& out, std::uint32_t field, float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  put_key(out, field, Wire::kFixed32);
  put_fixed(out, bits);
}
std::optional<std::uint64_t> take_varint(std::string_view& in) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && !in.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(in.front());
    in.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7fu) << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

// Event: 1 wall_time double, 2 step int64, 3 file_version string, 5 summary.
// Summary: 1 repeated Value { 1 tag string, 2 simple_value float }.
constexpr std::uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;

/// The step of an Event message; 0 if it has none (the version record).
std::optional<std::uint64_t> step_of(std::string_view event) {
  std::uint64_t step = 0;
  while (!event.empty()) {
    const auto key = take_varint(event);
    if (!key) return std::nullopt;
    std::uint64_t skip = 0;
    switch (static_cast<Wire>(*key & 7u)) {
      case Wire::kVarint: {
        const auto value = take_varint(event);
        if (!value) return std::nullopt;
        if (*key >> 3 == kStep) step = *value;
        break;
      }
      case Wire::kFixed64:
        skip = 8;
        break;
      case Wire::kFixed32:
        skip = 4;
        break;
      case Wire::kBytes: {
        const auto length = take_varint(event);
        if (!length) return std::nullopt;
        skip = *length;
        break;
      }
      default:
        return std::nullopt;
    }
    if (skip > event.size()) return std::nullopt;
    event.remove_prefix(static_cast<std::size_t>(skip));
  }
  return step;
}

std::string frame(std::string_view event) {
  std::string out;
  out.reserve(event.size() + kHeadBytes + kTailBytes);
  put_fixed(out, static_cast<std::uint64_t>(event.size()));
  put_fixed(out, masked_crc32c(out));
  out += event;
  put_fixed(out, masked_crc32c(event));
  return out;
}

/// Removes records after `last_step`. The result ends before the first broken record.
std::string rewind(std::string_view contents, std::int64_t last_step) {
  std::string kept;
  while (contents.size() >= kHeadBytes) {
    const auto length = get_fixed<std::uint64_t>(contents);
    if (get_fixed<std::uint32_t>(contents.substr(8)) != masked_crc32c(contents.substr(0, 8))) break;
    if (contents.size() < kHeadBytes + kTailBytes ||
        length > contents.size() - kHeadBytes - kTailBytes)
      break;
    const auto size = static_cast<std::size_t>(length);
    const std::string_view event = contents.substr(kHeadBytes, size);
    if (get_fixed<std::uint32_t>(contents.substr(kHeadBytes + size)) != masked_crc32c(event)) break;
    const auto step = step_of(event);
    if (!step) break;
    const std::size_t whole = kHeadBytes + size + kTailBytes;
    if (static_cast<std::int64_t>(*step) <= last_step) kept += contents.substr(0, whole);
    contents.remove_prefix(whole);
  }
  return kept;
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Result<std::vector<std::filesystem::path>> event_files(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::vector<std::filesystem::path> files;
  std::filesystem::directory_iterator entries(folder, error);
  for (const std::filesystem::directory_iterator end; !error && entries != end;
       entries.increment(error)) {
    if (entries->path().filename().string().rfind(kPrefix, 0) == 0)
      files.push_back(entries->path());
  }
  if (error)
    return Status(ErrorCode::kIo, "Cannot use " + folder.string() + ": " + error.message());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes)
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string version_record(double wall_seconds) {
  std::string event;
  put_double(event, kWallTime, wall_seconds);
  put_bytes(event, kFileVersion, "brain.Event:2");
  return frame(event);
}

std::string scalars_record(double wall_seconds, std::uint64_t step,
                           const std::map<std::string, double>& scalars) {
  std::string summary;
  for (const auto& [name, value] : scalars) {
    std::string entry;
    put_bytes(entry, 1, name);
    put_float(entry, 2, static_cast<float>(value));
    put_bytes(summary, 1, entry);
  }
  std::string event;
  put_double(event, kWallTime, wall_seconds);
  put_key(event, kStep, Wire::kVarint);
  put_varint(event, step);
  put_bytes(event, kSummary, summary);
  return frame(event);
}

Result<EventFile> EventFile::open(const std::filesystem::path& folder,
                                  std::optional<std::int64_t> resume_step) {
  NEAP_TRY_ASSIGN(const auto files, event_files(folder));
  if (!files.empty() && !resume_step)
    return Status(
        ErrorCode::kAlreadyExists,
        folder.string() + " already holds the events of a run; resume it or choose another folder");
  std::filesystem::path newest;
  for (const auto& file : files) {
    if (*resume_step < 0) {
      std::error_code error;
      std::filesystem::remove(file, error);
      if (error)
        return Status(ErrorCode::kIo, "Cannot remove " + file.string() + ": " + error.message());
      continue;
    }
    NEAP_TRY_ASSIGN(const std::string contents, read_file(file, read_limits::kEventFile));
    const std::string kept = rewind(contents, *resume_step);
    if (kept.size() != contents.size()) NEAP_TRY(write_file_atomic(file, kept));
    if (!kept.empty()) newest = file;
  }
  if (!newest.empty()) {
    NEAP_TRY_ASSIGN(AppendFile file, AppendFile::open(newest));
    return EventFile(std::move(file));
  }
  const double now = now_seconds();
  const auto path =
      folder / format("{}{:010}.neap.{}", kPrefix, static_cast<std::uint64_t>(now), ::getpid());
  NEAP_TRY_ASSIGN(AppendFile file, AppendFile::open(path));
  NEAP_TRY(file.write(version_record(now)));
  return EventFile(std::move(file));
}

Status EventFile::append(double wall_seconds, std::uint64_t step,
                         const std::map<std::string, double>& scalars) {
  return file_.write_or_keep(scalars_record(wall_seconds, step, scalars));
}

}  // namespace neap::report
