// Rows of a Parquet file, read by pyarrow in a process of its own.
//
// pyarrow's C++ libraries have no stable binary interface and are not in Debian, so `python3`, as
// found on PATH, reads the file and writes rows as JSON lines to a pipe. A file that crashes the
// library or takes its memory is one error here.
//
// Failure   kUnsupported where there is no python3 with pyarrow, with the command that installs it;
//           kCorrupt with the library's reason.
#pragma once

#include <string_view>

#include "data/row_source.h"

namespace neap::data {

constexpr std::string_view kParquetMagic = "PAR1";

[[nodiscard]] Result<std::unique_ptr<RowSource>> open_parquet(const std::filesystem::path& file);

}  // namespace neap::data
