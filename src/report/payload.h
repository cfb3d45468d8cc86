// Columns of numbers in the page: differences as variable-length integers, deflated, in base64.
//
// Grammar   each column has `count` values. A value is encoded as its difference to the previous one, in
//           units of the column's `unit`, as a zigzag varint (7 bits per byte, lowest first). Columns
//           follow one another. The page's JSON lists name, unit and count in order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"

namespace neap::report {

class Payload {
 public:
  void add(std::string_view name, std::span<const std::uint64_t> values);
  [[nodiscard]] const Json& columns() const { return columns_; }
  [[nodiscard]] Result<std::string> to_base64() const;

 private:
  std::string bytes_;
  Json columns_ = Json::array();
};

[[nodiscard]] std::string base64(std::string_view bytes);

}  // namespace neap::report
