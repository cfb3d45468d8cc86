#include "model/tree.h"

namespace neap::model {
namespace {

constexpr int kMaxDepth = 64;

void check_depth(std::string_view text, std::string_view where) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
      continue;
    }
    if (c == '"') quoted = true;
    depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (depth > kMaxDepth) corrupt(where, format("nests deeper than {} levels", kMaxDepth));
  }
}

}  // namespace

Tree parse_tree(std::string_view text, std::string_view where) {
  check_depth(text, where);
  try {
    return Tree::parse(text.begin(), text.end());
  } catch (const Tree::parse_error& e) {
    corrupt(where, format("not valid JSON at byte {}", e.byte));
  }
}

}  // namespace neap::model
