#include "base/tag.h"

#include "base/utf8.h"

namespace neap {

Status check_tag(std::string_view tag) {
  if (tag.empty()) return {ErrorCode::kInvalidArgument, "A tag is needed: its name is empty"};
  if (!is_utf8(tag)) return {ErrorCode::kInvalidArgument, "A tag is not UTF-8"};
  return {};
}

}  // namespace neap
