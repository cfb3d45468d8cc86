// Reads lines of a plain or compressed file as rows: see row_source.h.
#pragma once

#include "base/line_reader.h"
#include "data/row_source.h"

namespace neap::data {

class JsonlSource final : public RowSource {
 public:
  explicit JsonlSource(Input input) : lines_(std::move(input), read_limits::kRow) {}
  [[nodiscard]] Result<bool> next(RawRow& row) override;
  [[nodiscard]] std::string where(std::uint64_t number) const override {
    return lines_.where(number);
  }
  [[nodiscard]] std::uint64_t position() const override { return rows_; }
  [[nodiscard]] bool packed() const override { return lines_.input().packed(); }
  [[nodiscard]] double progress() const override;

 private:
  LineReader lines_;
  std::uint64_t rows_ = 0;
};

}  // namespace neap::data
