#include "data/jsonl_source.h"

#include "base/format.h"

namespace neap::data {
namespace {

// Whether the line begins a JSON array, possibly after a UTF-8 byte-order mark.
bool begins_array(std::string_view line) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (line.starts_with(kMark)) line.remove_prefix(kMark.size());
  const std::size_t at = line.find_first_not_of(" \t\r");
  return at != std::string_view::npos && line[at] == '[';
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

}  // namespace

double JsonlSource::progress() const {
  const auto size = static_cast<double>(lines_.input().file_size());
  return size > 0 ? static_cast<double>(lines_.input().consumed()) / size : 0;
}

Result<bool> JsonlSource::next(RawRow& row) {
  LineReader::Line line;
  while (true) {
    NEAP_TRY_ASSIGN(const bool more, lines_.next(line));
    if (!more) return false;
    if (is_blank(line.text)) continue;
    if (rows_ == 0 && begins_array(line.text)) {
      return Status(
          ErrorCode::kCorrupt,
          format("{}: the file begins with \"[\", as a JSON array; each line has to be one "
                 "JSON object. `jq -c '.[]' {} > OUT.jsonl` converts an array",
                 where(line.number), lines_.input().name()));
    }
    ++rows_;
    row = {line.text, line.number};
    return true;
  }
}

}  // namespace neap::data
