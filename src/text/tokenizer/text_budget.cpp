#include "text/tokenizer/text_budget.h"

#include "base/format.h"
#include "base/status.h"

namespace neap::text {
namespace {

void fail(std::string_view what) {
  throw Error(ErrorCode::kInvalidArgument, format("The tokenizer {}", what));
}

}  // namespace

Budget text_budget(std::size_t bytes) {
  return Budget(read_limits::kTokenizer, bytes, fail);
}

}  // namespace neap::text
