// Methods of texts, lists and dicts.
#include <algorithm>
#include <map>

#include "base/format.h"
#include "chat/interpreter.h"
#include "chat/text.h"
#include "model/utf8.h"

namespace neap::chat {
namespace {

using Method = Value (*)(const Value& self, const Arguments& a);
using V = Value;
using A = Arguments;

const std::string& text_argument(const A& a, std::size_t position, const char* name) {
  const Value* found = a.find(position, name);
  if (found == nullptr || found->text() == nullptr) fail(format("a text is needed for '{}'", name));
  return *found->text();
}
template <bool kLeft, bool kRight>
Value m_strip(const V& v, const A& a) {
  const Value* set = a.find(0, "chars");
  if (set != nullptr && !set->is<None>() && set->defined().text() == nullptr)
    fail("strip arg must be None or str");
  return stripped(*v.text(), set == nullptr ? nullptr : set->text(), kLeft, kRight);
}
Value list_of(std::vector<std::string> texts) {
  List made;
  for (std::string& t : texts) made.items.emplace_back(std::move(t));
  return made;
}
std::int64_t count_argument(const A& a, std::size_t position, const char* name) {
  const Value* found = a.find(position, name);
  if (found == nullptr) return -1;
  if (!found->is_integer()) fail(format("'{}' must be an integer", name));
  return found->integer();
}
Value m_split(const V& v, const A& a) {
  const Value* by = a.find(0, "sep");
  std::int64_t left = count_argument(a, 1, "maxsplit");
  if (by == nullptr || by->is<None>()) {
    if (left < 0) return list_of(words(*v.text()));
    std::vector<std::string> made;
    std::string rest = stripped(*v.text(), nullptr, true, false);
    while (!rest.empty()) {
      const std::string first = left == 0 ? rest : words(rest).front();
      made.push_back(first);
      rest = stripped(rest.substr(first.size()), nullptr, true, false);
      --left;
    }
    return list_of(std::move(made));
  }
  const std::string& separator = text_argument(a, 0, "sep");
  if (separator.empty()) fail("empty separator");
  std::vector<std::string> made;
  std::string_view rest = *v.text();
  for (std::size_t at; left != 0 && (at = rest.find(separator)) != std::string_view::npos; --left) {
    made.emplace_back(rest.substr(0, at));
    rest.remove_prefix(at + separator.size());
  }
  made.emplace_back(rest);
  return list_of(std::move(made));
}
Value m_rsplit(const V& v, const A& a) {
  const std::string& separator = text_argument(a, 0, "sep");
  if (separator.empty()) fail("empty separator");
  std::vector<std::string> made;
  std::string_view rest = *v.text();
  std::int64_t left = count_argument(a, 1, "maxsplit");
  for (std::size_t at; left != 0 && (at = rest.rfind(separator)) != std::string_view::npos;
       --left) {
    made.emplace_back(rest.substr(at + separator.size()));
    rest = rest.substr(0, at);
  }
  made.emplace_back(rest);
  std::reverse(made.begin(), made.end());
  return list_of(std::move(made));
}
Value m_splitlines(const V& v, const A& a) {
  const Value* keep = a.find(0, "keepends");
  std::vector<std::string> made;
  for (std::string_view rest = *v.text(); !rest.empty();) {
    const std::size_t end = std::min(rest.find_first_of("\n\r"), rest.size());
    std::size_t next = std::min(end + 1, rest.size());
    if (end + 1 < rest.size() && rest[end] == '\r' && rest[end + 1] == '\n') ++next;
    made.emplace_back(rest.substr(0, keep != nullptr && keep->truth() ? next : end));
    rest.remove_prefix(next);
  }
  return list_of(std::move(made));
}
template <bool kFront>
Value m_with(const V& v, const A& a) {
  const auto holds = [&](const std::string& part) {
    return kFront ? v.text()->starts_with(part) : v.text()->ends_with(part);
  };
  if (!a.list.empty() && a.list[0].list() != nullptr) {
    for (const Value& one : a.list[0].list()->items) {
      if (one.text() != nullptr && holds(*one.text())) return true;
    }
    return false;
  }
  return holds(text_argument(a, 0, "prefix"));
}
template <bool kLast>
Value m_find(const V& v, const A& a) {
  const std::string& part = text_argument(a, 0, "sub");
  const std::size_t at = kLast ? v.text()->rfind(part) : v.text()->find(part);
  if (at == std::string::npos) return std::int64_t{-1};
  return static_cast<std::int64_t>(characters(std::string_view(*v.text()).substr(0, at)));
}
Value m_index(const V& v, const A& a) {
  Value at = m_find<false>(v, a);
  if (at.integer() < 0) fail("substring not found");
  return at;
}
Value m_count(const V& v, const A& a) {
  const std::string& part = text_argument(a, 0, "sub");
  if (part.empty()) return static_cast<std::int64_t>(characters(*v.text())) + 1;
  std::int64_t n = 0;
  for (std::size_t at = 0; (at = v.text()->find(part, at)) != std::string::npos; at += part.size())
    ++n;
  return n;
}
Value m_join(const V& v, const A& a) {
  const Value* parts = a.find(0, "iterable");
  if (parts == nullptr) fail("join() takes exactly one argument (0 given)");
  std::string made;
  bool first = true;
  for (const Value& one : parts->iterate()) {
    if (one.text() == nullptr)
      fail(format("sequence item: expected str instance, {} found", one.type()));
    if (!first) made += *v.text();
    first = false;
    made += *one.text();
    if (made.size() > kMaxText) fail("join: the text is too long");
  }
  return made;
}
Value m_replace(const V& v, const A& a) {
  return replaced(*v.text(), text_argument(a, 0, "old"), text_argument(a, 1, "new"),
                  count_argument(a, 2, "count"));
}
template <bool kFront>
Value m_remove(const V& v, const A& a) {
  const std::string& part = text_argument(a, 0, "prefix");
  if (!(kFront ? v.text()->starts_with(part) : v.text()->ends_with(part))) return v;
  return kFront ? v.text()->substr(part.size())
                : v.text()->substr(0, v.text()->size() - part.size());
}
template <class Predicate>
Value all_characters(const V& v, const Predicate& predicate) {
  const std::vector<Value> list = v.iterate();
  return !list.empty() && std::all_of(list.begin(), list.end(), [&](const Value& c) {
    return predicate(model::utf8::front(*c.text()).value);
  });
}
Value m_partition(const V& v, const A& a) {
  const std::string& separator = text_argument(a, 0, "sep");
  const std::size_t at = v.text()->find(separator);
  List made;
  made.tuple = true;
  if (at == std::string::npos) {
    made.items = {v, "", ""};
  } else {
    made.items = {v.text()->substr(0, at), separator, v.text()->substr(at + separator.size())};
  }
  return made;
}

const std::map<std::string_view, Method>& text_methods() {
  static const std::map<std::string_view, Method> known = {
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
      {"upper", [](const V& v, const A&) -> V { return upper(*v.text()); }},
      {"lower", [](const V& v, const A&) -> V { return lower(*v.text()); }},
      {"capitalize", [](const V& v, const A&) -> V { return capitalized(*v.text()); }},
      {"title", [](const V& v, const A&) -> V { return title(*v.text()); }},
      {"isdigit",
       [](const V& v, const A&) {
         return all_characters(v, [](std::int32_t c) { return c >= '0' && c <= '9'; });
       }},
      {"isspace", [](const V& v, const A&) { return all_characters(v, model::utf8::is_space); }},
      {"isalpha", [](const V& v, const A&) {
         return all_characters(v, [](std::int32_t c) {
           return model::utf8::is_word(c) && !model::utf8::is_numeric(c) && c != '_';
         });
       }}};
  return known;
}

Value pair_of(const Value& a, const Value& b) {
  List made;
  made.tuple = true;
  made.items = {a, b};
  return made;
}
Value m_get(const V& v, const A& a) {
  const Value* key = a.find(0, "key");
  if (key == nullptr) fail("get expected at least 1 argument, got 0");
  if (const Value* found = v.dict()->find(*key)) return *found;
  const Value* absent = a.find(1, "default");
  return absent == nullptr ? Value() : *absent;
}
Value m_items(const V& v, const A&) {
  List made;
  for (const auto& [key, value] : v.dict()->items) made.items.push_back(pair_of(key, value));
  return made;
}
Value m_values(const V& v, const A&) {
  List made;
  for (const auto& [key, value] : v.dict()->items) made.items.push_back(value);
  return made;
}
Value m_keys(const V& v, const A&) {
  List made;
  made.items = v.iterate();
  return made;
}
Value m_copy(const V& v, const A&) {
  return v;
}
Value m_immutable(const V& v, const A&) {
  fail(format("a {} of a template cannot be changed", v.type()));
}

const std::map<std::string_view, Method>& dict_methods() {
  static const std::map<std::string_view, Method> known = {
      {"get", m_get},           {"items", m_items},      {"values", m_values},
      {"keys", m_keys},         {"copy", m_copy},        {"pop", m_immutable},
      {"popitem", m_immutable}, {"update", m_immutable}, {"setdefault", m_immutable},
      {"clear", m_immutable}};
  return known;
}

Value m_list_index(const V& v, const A& a) {
  const auto& items = v.list()->items;
  for (std::size_t k = 0; k < items.size() && !a.list.empty(); ++k) {
    if (equal(items[k], a.list[0])) return static_cast<std::int64_t>(k);
  }
  fail("the value is not in the list");
}
Value m_list_count(const V& v, const A& a) {
  const auto& items = v.list()->items;
  if (a.list.size() != 1) fail("count() takes exactly one argument");
  return static_cast<std::int64_t>(std::count_if(
      items.begin(), items.end(), [&](const Value& x) { return equal(x, a.list[0]); }));
}

const std::map<std::string_view, Method>& list_methods() {
  static const std::map<std::string_view, Method> known = {
      {"index", m_list_index}, {"count", m_list_count}, {"copy", m_copy},
      {"append", m_immutable}, {"extend", m_immutable}, {"insert", m_immutable},
      {"pop", m_immutable},    {"remove", m_immutable}, {"reverse", m_immutable},
      {"sort", m_immutable},   {"clear", m_immutable}};
  return known;
}

}  // namespace

Value find_method(const Value& object, const std::string& name) {
  const auto* methods = object.text() != nullptr   ? &text_methods()
                        : object.dict() != nullptr ? &dict_methods()
                        : object.list() != nullptr ? &list_methods()
                                                   : nullptr;
  const auto it = methods == nullptr ? std::map<std::string_view, Method>::const_iterator()
                                     : methods->find(name);
  if (methods == nullptr || it == methods->end()) return Value::undefined("no such method");
  return Value::function(
      name,
      [object, method = it->second](Interpreter&, const Arguments& a) { return method(object, a); },
      object.depth() + 1);
}

}  // namespace neap::chat
