// Any bytes as a file of rows: plain, gzip or zstd. Rows of the lines and fields of the rows are read.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "data/fields.h"
#include "data/jsonl_source.h"

namespace {

// A bomb's rows are all alike.
constexpr std::uint64_t kMostRows = 2000;

void check(bool holds) {
  if (!holds) std::abort();
}

void read_fields(std::string_view text) {
  const auto row = neap::data::parse_row(text, "rows:1");
  if (!row.ok()) return;
  check(row->is_object());
  const auto field = neap::data::text_field(*row, "prompt", "rows:1");
  check(!field.ok() || field->is_string() || neap::data::is_conversation(*field));
  (void)neap::data::optional_text_field(*row, "response", "rows:1");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto input = neap::Input::over(std::span(data, size), "rows");
  if (!input.ok()) return 0;
  neap::data::JsonlSource source(std::move(*input));
  neap::data::RawRow row;
  std::uint64_t before = 0;
  for (std::uint64_t rows = 0; rows < kMostRows; ++rows) {
    const auto more = source.next(row);
    if (!more.ok()) check(!more.status().message().empty());
    if (!more.ok() || !*more) break;
    check(row.number > before && source.position() == rows + 1);
    check(row.text.find('\n') == std::string_view::npos);
    before = row.number;
    read_fields(row.text);
  }
  return 0;
}
