// Rows of a Parquet file, read by pyarrow in a separate process.
//
// pyarrow's C++ libraries have no stable binary interface and are not in Debian. So the `python3`
// found on PATH reads the file and writes rows as JSON lines to a pipe. A file that crashes the
// library, exceeds memory or time, or is a decompression bomb causes only an error here.
//
// Failure   kUnsupported without a python3 that has pyarrow; the message has the command that
//           installs it. kCorrupt with the library's reason.
#pragma once

#include <chrono>
#include <string_view>

#include "data/row_source.h"

namespace neap::data {

constexpr std::string_view kParquetMagic = "PAR1";

/// Maximum silence of the reader: it may have to load pyarrow from a network.
inline constexpr std::chrono::minutes kReaderPatience{10};

[[nodiscard]] Result<std::unique_ptr<RowSource>> open_parquet(
    const std::filesystem::path& file, std::chrono::milliseconds patience = kReaderPatience);

}  // namespace neap::data
