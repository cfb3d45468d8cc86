#include "text/tokenizer/tree.h"

#include "base/read_limits.h"

namespace neap::text {
Tree parse_tree(std::string_view text, std::string_view where) {
  throw_if_error(check_json(text, where, read_limits::kTokenizerFile));
  try {
    return Tree::parse(text.begin(), text.end());
  } catch (const Tree::parse_error& e) {
    corrupt(where, format("not valid JSON at byte {}", e.byte));
  }
}

}  // namespace neap::text
