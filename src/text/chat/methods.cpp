// Methods of texts, lists and dicts.
#include <algorithm>
#include <map>

#include "base/format.h"
#include "text/chat/interpreter.h"
#include "text/chat/text.h"
#include "text/tokenizer/utf8.h"

namespace neap::chat {
namespace {

using Method = Value::Function;
using I = Interpreter;
using V = Value;
using A = Arguments;

const Text& text_argument(const A& a, std::size_t position, const char* name) {
  const Value* found = a.find(position, name);
  if (found == nullptr || found->text() == nullptr) fail(format("a text is needed for '{}'", name));
  return *found->text();
}
template <bool kLeft, bool kRight>
Value m_strip(I& i, const V& v, const A& a) {
  const Value* set = a.find(0, "chars");
  if (set != nullptr && !set->is<None>() && set->defined().text() == nullptr)
    fail("strip arg must be None or str");
  return stripped(*v.text(), set == nullptr ? nullptr : set->text(), kLeft, kRight, i.budget());
}
std::int64_t count_argument(const A& a, std::size_t position, const char* name) {
  const Value* found = a.find(position, name);
  if (found == nullptr) return -1;
  if (!found->is_integer()) fail(format("'{}' must be an integer", name));
  return found->integer();
}
const Text& separator_argument(const A& a) {
  const Text& separator = text_argument(a, 0, "sep");
  if (separator.empty()) fail("empty separator");
  return separator;
}
Value m_split(I& i, const V& v, const A& a) {
  const Value* by = a.find(0, "sep");
  std::int64_t left = count_argument(a, 1, "maxsplit");
  const Text& text = *v.text();
  List made(i.budget());
  if (by == nullptr || by->is<None>()) {
    for (const Text& word : words(text, left, i.budget())) made.items.emplace_back(word);
    return made;
  }
  const Text& separator = separator_argument(a);
  std::size_t begin = 0;
  for (std::size_t at;
       left != 0 && (at = find_part(text, separator, i.budget(), begin)) != std::string_view::npos;
       --left) {
    made.items.emplace_back(text.part(begin, at - begin));
    begin = at + separator.size();
  }
  made.items.emplace_back(text.part(begin));
  return made;
}
Value m_rsplit(I& i, const V& v, const A& a) {
  const Text& separator = separator_argument(a);
  const Text& text = *v.text();
  const String backward = reversed_bytes(text, i.budget());
  const String part = reversed_bytes(separator, i.budget());
  std::int64_t left = count_argument(a, 1, "maxsplit");
  List made(i.budget());
  std::size_t done = 0;  // bytes handled from the end
  for (std::size_t at;
       left != 0 && (at = find_part(backward, part, i.budget(), done)) != std::string_view::npos;
       --left) {
    made.items.emplace_back(text.part(text.size() - at, at - done));
    done = at + part.size();
  }
  made.items.emplace_back(text.part(0, text.size() - done));
  std::reverse(made.items.begin(), made.items.end());
  return made;
}
Value m_splitlines(I& i, const V& v, const A& a) {
  const Value* keep = a.find(0, "keepends");
  const Text& text = *v.text();
  i.budget().read(text.size());
  List made(i.budget());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.view().find_first_of("\n\r", at), text.size());
    std::size_t next = std::min(end + 1, text.size());
    if (text.view().substr(end).starts_with("\r\n")) ++next;
    made.items.emplace_back(text.part(at, (keep != nullptr && keep->truth() ? next : end) - at));
    at = next;
  }
  return made;
}
template <bool kFront>
Value m_with(I&, const V& v, const A& a) {
  const auto holds = [&](std::string_view part) {
    return kFront ? v.text()->view().starts_with(part) : v.text()->view().ends_with(part);
  };
  if (!a.list.empty() && a.list[0].list() != nullptr) {
    const auto& items = a.list[0].list()->items;
    return std::any_of(items.begin(), items.end(), [&](const Value& one) {
      return one.text() != nullptr && holds(*one.text());
    });
  }
  return holds(text_argument(a, 0, "prefix"));
}
template <bool kLast>
Value m_find(I& i, const V& v, const A& a) {
  const std::string_view text = *v.text(), part = text_argument(a, 0, "sub");
  std::size_t at = 0;
  if (kLast) {
    at = find_part(reversed_bytes(text, i.budget()), reversed_bytes(part, i.budget()), i.budget());
    if (at != std::string_view::npos) at = text.size() - at - part.size();
  } else {
    at = find_part(text, part, i.budget());
  }
  if (at == std::string_view::npos) return std::int64_t{-1};
  return static_cast<std::int64_t>(characters(text.substr(0, at), i.budget()));
}
Value m_index(I& i, const V& v, const A& a) {
  Value at = m_find<false>(i, v, a);
  if (at.integer() < 0) fail("substring not found");
  return at;
}
Value m_count(I& i, const V& v, const A& a) {
  const Text& part = text_argument(a, 0, "sub");
  if (part.empty()) return static_cast<std::int64_t>(characters(*v.text(), i.budget())) + 1;
  std::int64_t n = 0;
  for (std::size_t at = 0;
       (at = find_part(*v.text(), part, i.budget(), at)) != std::string_view::npos;
       at += part.size())
    ++n;
  return n;
}
Value m_join(I& i, const V& v, const A& a) {
  const Value* parts = a.find(0, "iterable");
  if (parts == nullptr) fail("join() takes exactly one argument (0 given)");
  String made(i.budget());
  bool first = true;
  parts->each(i.budget(), [&](const Value& one) {
    if (one.text() == nullptr)
      fail(format("sequence item: expected str instance, {} found", one.type()));
    if (!std::exchange(first, false)) made += *v.text();
    made += *one.text();
  });
  return made;
}
Value m_replace(I& i, const V& v, const A& a) {
  return replaced(*v.text(), text_argument(a, 0, "old"), text_argument(a, 1, "new"),
                  count_argument(a, 2, "count"), i.budget());
}
template <bool kFront>
Value m_remove(I&, const V& v, const A& a) {
  const Text& part = text_argument(a, 0, "prefix");
  const std::string_view text = *v.text();
  if (!(kFront ? text.starts_with(part) : text.ends_with(part))) return v;
  return kFront ? v.text()->part(part.size()) : v.text()->part(0, text.size() - part.size());
}
template <class Predicate>
Value all_characters(I& i, const V& v, const Predicate& predicate) {
  std::string_view rest = *v.text();
  if (rest.empty()) return false;
  i.budget().spend(rest.size() / 8);
  while (!rest.empty()) {
    const text::utf8::Point p = text::utf8::front(rest);
    if (!predicate(p.value)) return false;
    rest.remove_prefix(p.bytes);
  }
  return true;
}
Value m_isdigit(I& i, const V& v, const A&) {
  return all_characters(i, v, [](std::int32_t c) { return c >= '0' && c <= '9'; });
}
Value m_isspace(I& i, const V& v, const A&) {
  return all_characters(i, v, text::utf8::is_space);
}
Value m_isalpha(I& i, const V& v, const A&) {
  return all_characters(i, v, [](std::int32_t c) {
    return text::utf8::is_word(c) && !text::utf8::is_numeric(c) && c != '_';
  });
}
Value m_partition(I& i, const V& v, const A& a) {
  const Text& separator = text_argument(a, 0, "sep");
  const Text& text = *v.text();
  const std::size_t at = find_part(text, separator, i.budget());
  List made(i.budget());
  made.tuple = true;
  if (at == std::string_view::npos) {
    for (const Value& part : {v, Value(""), Value("")}) made.items.push_back(part);
  } else {
    made.items.emplace_back(text.part(0, at));
    made.items.emplace_back(separator);
    made.items.emplace_back(text.part(at + separator.size()));
  }
  return made;
}

const std::map<std::string_view, Method>& text_methods() {
  static const std::map<std::string_view, Method> kKnown = {
      {"strip", m_strip<true, true>},
      {"lstrip", m_strip<true, false>},
      {"rstrip", m_strip<false, true>},
      {"split", m_split},
      {"rsplit", m_rsplit},
      {"splitlines", m_splitlines},
      {"startswith", m_with<true>},
      {"endswith", m_with<false>},
      {"find", m_find<false>},
      {"rfind", m_find<true>},
      {"index", m_index},
      {"count", m_count},
      {"join", m_join},
      {"replace", m_replace},
      {"removeprefix", m_remove<true>},
      {"removesuffix", m_remove<false>},
      {"partition", m_partition},
      {"upper", [](I& i, const V& v, const A&) -> V { return upper(*v.text(), i.budget()); }},
      {"lower", [](I& i, const V& v, const A&) -> V { return lower(*v.text(), i.budget()); }},
      {"capitalize",
       [](I& i, const V& v, const A&) -> V { return capitalized(*v.text(), i.budget()); }},
      {"title", [](I& i, const V& v, const A&) -> V { return title(*v.text(), i.budget()); }},
      {"isdigit", m_isdigit},
      {"isspace", m_isspace},
      {"isalpha", m_isalpha}};
  return kKnown;
}

Value m_get(I& i, const V& v, const A& a) {
  const Value* key = a.find(0, "key");
  if (key == nullptr) fail("get expected at least 1 argument, got 0");
  if (const Value* found = v.dict()->find(*key, i.budget())) return *found;
  const Value* absent = a.find(1, "default");
  return absent == nullptr ? Value() : *absent;
}
Value m_items(I& i, const V& v, const A&) {
  return items_of(*v.dict(), i.budget());
}
Value m_values(I& i, const V& v, const A&) {
  List made(i.budget());
  for (const auto& [key, value] : v.dict()->items) made.items.push_back(value);
  return made;
}
Value m_keys(I& i, const V& v, const A&) {
  return List(v.iterate(i.budget()));
}
Value m_copy(I&, const V& v, const A&) {
  return v;
}
Value m_immutable(I&, const V& v, const A&) {
  fail(format("a {} of a template cannot be changed", v.type()));
}

const std::map<std::string_view, Method>& dict_methods() {
  static const std::map<std::string_view, Method> kKnown = {
      {"get", m_get},           {"items", m_items},      {"values", m_values},
      {"keys", m_keys},         {"copy", m_copy},        {"pop", m_immutable},
      {"popitem", m_immutable}, {"update", m_immutable}, {"setdefault", m_immutable},
      {"clear", m_immutable}};
  return kKnown;
}

Value m_list_index(I& i, const V& v, const A& a) {
  const auto& items = v.list()->items;
  for (std::size_t k = 0; k < items.size() && !a.list.empty(); ++k) {
    if (equal(items[k], a.list[0], i.budget())) return static_cast<std::int64_t>(k);
  }
  fail("the value is not in the list");
}
Value m_list_count(I& i, const V& v, const A& a) {
  const auto& items = v.list()->items;
  if (a.list.size() != 1) fail("count() takes exactly one argument");
  return static_cast<std::int64_t>(std::count_if(
      items.begin(), items.end(), [&](const Value& x) { return equal(x, a.list[0], i.budget()); }));
}

const std::map<std::string_view, Method>& list_methods() {
  static const std::map<std::string_view, Method> kKnown = {
      {"index", m_list_index}, {"count", m_list_count}, {"copy", m_copy},
      {"append", m_immutable}, {"extend", m_immutable}, {"insert", m_immutable},
      {"pop", m_immutable},    {"remove", m_immutable}, {"reverse", m_immutable},
      {"sort", m_immutable},   {"clear", m_immutable}};
  return kKnown;
}

}  // namespace

List items_of(const Dict& dict, Budget& budget) {
  List made(budget);
  for (const auto& [key, value] : dict.items) {
    List pair(budget);
    pair.tuple = true;
    pair.items.reserve(2);
    pair.items.push_back(key);
    pair.items.push_back(value);
    made.items.emplace_back(std::move(pair));
  }
  return made;
}

Value find_method(const Value& object, std::string_view name, Budget& budget) {
  const auto* methods = object.text() != nullptr   ? &text_methods()
                        : object.dict() != nullptr ? &dict_methods()
                        : object.list() != nullptr ? &list_methods()
                                                   : nullptr;
  if (methods == nullptr) return {};
  const auto it = methods->find(name);
  return it == methods->end() ? Value() : Value::function(it->second, object, budget);
}

}  // namespace neap::chat
