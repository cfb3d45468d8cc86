#include "data/jsonl_source.h"

#include <algorithm>
#include <cstring>

#include "base/format.h"

namespace neap::data {
namespace {

constexpr std::size_t kMostLine = kMostRowBytes.count();
constexpr std::size_t kFirstWindow = std::size_t{1} << 16;

// A file that is one JSON array begins so, perhaps behind the mark of UTF-8.
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

std::string JsonlSource::where(std::uint64_t number) const {
  return format("{}:{}", input_.name(), number);
}

double JsonlSource::progress() const {
  const auto size = static_cast<double>(input_.file_size());
  return size > 0 ? static_cast<double>(input_.consumed()) / size : 0;
}

Result<std::string_view> JsonlSource::line() {
  std::size_t searched = 0;
  while (true) {
    const std::size_t have = std::min(input_.available(), kMostLine + 1);
    const auto* const text = reinterpret_cast<const char*>(input_.data());
    if (const void* end = std::memchr(text + searched, '\n', have - searched))
      return std::string_view(text, static_cast<const char*>(end));
    if (have > kMostLine) {
      return Status(ErrorCode::kCorrupt, format("{}: the line is over the limit of {}",
                                                where(lines_ + 1), kMostRowBytes));
    }
    searched = have;
    const std::size_t wanted = std::min(std::max(2 * have, kFirstWindow), kMostLine + 1);
    if (input_.ensure(wanted) || input_.available() > have) continue;
    if (!input_.status().ok())
      return Status(input_.status()).with_context(format("reading {}", where(lines_ + 1)));
    return std::string_view(reinterpret_cast<const char*>(input_.data()), have);
  }
}

Result<bool> JsonlSource::next(RawRow& row) {
  while (true) {
    NEAP_TRY_ASSIGN(const std::string_view text, line());
    // The text stays where it is until the next call of ensure().
    const std::size_t taken = std::min(text.size() + 1, input_.available());
    if (taken == 0) return false;
    input_.advance(taken);
    ++lines_;
    if (is_blank(text)) continue;
    if (rows_ == 0 && begins_array(text)) {
      return Status(
          ErrorCode::kCorrupt,
          format("{}: the file begins with \"[\", as a JSON array; each line has to be one "
                 "JSON object. `jq -c '.[]' {} > OUT.jsonl` converts an array",
                 where(lines_), input_.name()));
    }
    ++rows_;
    row = {text, lines_};
    return true;
  }
}

}  // namespace neap::data
