// Lines of a file, plain or packed, as rows: see row_source.h.
#pragma once

#include "base/input.h"
#include "data/row_source.h"

namespace neap::data {

class JsonlSource final : public RowSource {
 public:
  explicit JsonlSource(Input input) : input_(std::move(input)) {}
  [[nodiscard]] Result<bool> next(RawRow& row) override;
  [[nodiscard]] std::string where(std::uint64_t number) const override;
  [[nodiscard]] std::uint64_t position() const override { return rows_; }
  [[nodiscard]] bool packed() const override { return input_.packed(); }
  [[nodiscard]] double progress() const override;

 private:
  /// The line at the cursor with its end; fails where it is too long.
  [[nodiscard]] Result<std::string_view> line();
  Input input_;
  std::uint64_t lines_ = 0, rows_ = 0;
};

}  // namespace neap::data
