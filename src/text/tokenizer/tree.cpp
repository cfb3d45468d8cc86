#include "text/tokenizer/tree.h"

#include "base/json_depth.h"

namespace neap::text {
namespace {

constexpr int kMaxDepth = 64;

}  // namespace

Tree parse_tree(std::string_view text, std::string_view where) {
  if (json_deeper_than(text, kMaxDepth))
    corrupt(where, format("nests deeper than {} levels", kMaxDepth));
  try {
    return Tree::parse(text.begin(), text.end());
  } catch (const Tree::parse_error& e) {
    corrupt(where, format("not valid JSON at byte {}", e.byte));
  }
}

}  // namespace neap::text
