// Rows of a Parquet file, read by pyarrow in a process of its own.
//
// pyarrow's C++ libraries have no stable binary interface and are not in Debian, so `python3`, as
// found on PATH, reads the file and writes rows as JSON lines to a pipe. A file that crashes the
// library, takes its memory or its time, or unpacks as a decompression bomb does, is one error here.
//
// Failure   kUnsupported where there is no python3 with pyarrow, with the command that installs it;
//           kCorrupt with the library's reason.
#pragma once

#include <chrono>
#include <string_view>

#include "data/row_source.h"

namespace neap::data {

constexpr std::string_view kParquetMagic = "PAR1";

/// How long the reader may write nothing: it may have to load pyarrow from a network.
inline constexpr std::chrono::minutes kReaderPatience{10};

[[nodiscard]] Result<std::unique_ptr<RowSource>> open_parquet(
    const std::filesystem::path& file, std::chrono::milliseconds patience = kReaderPatience);

}  // namespace neap::data
