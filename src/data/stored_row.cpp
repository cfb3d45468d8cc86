#include "data/stored_row.h"

#include <algorithm>
#include <bit>

namespace neap::data {
namespace {

void put(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : left_(bytes) {}

  [[nodiscard]] bool number(std::uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; shift < 63 && !left_.empty(); shift += 7) {
      const auto byte = static_cast<std::uint8_t>(left_.front());
      left_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  /// Each of `count` items takes at least a byte, so a corrupt count is rejected before it costs
  /// memory.
  [[nodiscard]] bool count(std::uint64_t& value) { return number(value) && value <= left_.size(); }
  [[nodiscard]] std::string_view take(std::uint64_t size) {
    const std::string_view out = left_.substr(0, size);
    left_.remove_prefix(out.size());
    return out;
  }
  [[nodiscard]] bool at_end() const { return left_.empty(); }

 private:
  std::string_view left_;
};

[[nodiscard]] bool read_text(Cursor& in, std::vector<std::int64_t>& out) {
  std::uint64_t size = 0;
  if (!in.count(size)) return false;
  out.resize(size);
  for (std::int64_t& id : out) {
    std::uint64_t value = 0;
    if (!in.number(value)) return false;
    id = static_cast<std::int64_t>(value);
  }
  return true;
}

// Writes the lengths of runs of equal values; the first run is of true.
void put_mask(std::string& out, const std::vector<bool>& mask) {
  std::vector<std::uint64_t> runs;
  bool value = true;
  for (auto at = mask.begin(); at != mask.end(); value = !value) {
    const auto end = std::find(at, mask.end(), !value);
    runs.push_back(static_cast<std::uint64_t>(end - at));
    at = end;
  }
  put(out, runs.size());
  for (const std::uint64_t run : runs) put(out, run);
}

[[nodiscard]] bool read_mask(Cursor& in, std::size_t longest, std::vector<bool>& mask) {
  std::uint64_t runs = 0;
  if (!in.count(runs)) return false;
  bool value = true;
  for (; runs > 0; --runs, value = !value) {
    std::uint64_t run = 0;
    if (!in.number(run) || run > longest - mask.size()) return false;
    mask.insert(mask.end(), run, value);
  }
  return true;
}

}  // namespace

std::string pack(const StoredRow& row) {
  std::string out;
  put(out, row.texts.size());
  for (const auto& text : row.texts) {
    put(out, text.size());
    for (const std::int64_t id : text) put(out, static_cast<std::uint64_t>(id));
  }
  put_mask(out, row.mask);
  put(out, std::bit_cast<std::uint32_t>(row.margin));
  put(out, row.json.size());
  return out + row.json;
}

Result<StoredRow> unpack(std::string_view bytes) {
  const Status broken(ErrorCode::kCorrupt, "The stored row is damaged");
  Cursor in(bytes);
  StoredRow row;
  std::uint64_t number = 0;
  if (!in.count(number)) return broken;
  row.texts.resize(number);
  for (auto& text : row.texts)
    if (!read_text(in, text)) return broken;
  if (!read_mask(in, row.texts.empty() ? 0 : row.texts.back().size(), row.mask)) return broken;
  if (!in.number(number) || number > UINT32_MAX) return broken;
  row.margin = std::bit_cast<float>(static_cast<std::uint32_t>(number));
  if (!in.count(number)) return broken;
  row.json = in.take(number);
  if (!in.at_end()) return broken;
  return row;
}

}  // namespace neap::data
