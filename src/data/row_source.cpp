#include "data/row_source.h"

#include <cstring>

#include "base/format.h"
#include "base/input.h"
#include "data/jsonl_source.h"
#include "data/parquet_source.h"

namespace neap::data {

Result<std::unique_ptr<RowSource>> RowSource::open(const std::filesystem::path& file) {
  NEAP_TRY_ASSIGN(Input input, Input::open(file));
  if (!input.packed() && input.ensure(kParquetMagic.size()) &&
      std::memcmp(input.data(), kParquetMagic.data(), kParquetMagic.size()) == 0) {
    std::error_code error;
    if (std::filesystem::is_regular_file(file, error)) return open_parquet(file);
    return Status(ErrorCode::kUnsupported,
                  format("{} is Parquet, whose end is read first, and no file: write it to one",
                         file.string()));
  }
  NEAP_TRY(input.status());
  return std::unique_ptr<RowSource>(std::make_unique<JsonlSource>(std::move(input)));
}

Status wrong_input(const Status& status) {
  if (status.code() != ErrorCode::kCorrupt) return status;
  return {ErrorCode::kInvalidArgument, status.message()};
}

}  // namespace neap::data
