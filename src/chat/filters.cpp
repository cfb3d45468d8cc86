// The filters of Jinja2 that chat templates use.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "base/format.h"
#include "chat/interpreter.h"
#include "chat/text.h"
#include "model/utf8.h"

namespace neap::chat {
namespace {

constexpr std::size_t kNamedOnly = ~std::size_t{0};

Value argument(const Arguments& a, std::size_t position, const char* name, Value absent) {
  const Value* found = a.find(position, name);
  return found == nullptr ? absent : *found;
}
std::string required_text(const Arguments& a, std::size_t position, const char* name,
                          const char* filter) {
  const Value* found = a.find(position, name);
  if (found == nullptr) fail(format("the filter '{}' lacks the argument '{}'", filter, name));
  return found->str();
}
Value list_of(std::vector<Value> items) {
  List made;
  made.items = std::move(items);
  return made;
}

/// "a.b.0" of an item, as the `attribute` of filters names it.
Value attribute_path(Interpreter& i, Value value, const Value& path) {
  if (path.is_integer()) return i.item(value, path);
  const std::string text = path.str();
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('.', at), text.size());
    const std::string part = text.substr(at, end - at);
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(),
                                                     [](char c) { return c >= '0' && c <= '9'; });
    value = number ? i.item(value, static_cast<std::int64_t>(std::atoll(part.c_str())))
                   : i.item(value, part);
    at = end + 1;
  }
  return value;
}

Value f_default(Interpreter&, const Value& v, const Arguments& a) {
  const bool falsy = argument(a, 1, "boolean", false).truth();
  return v.is<Undefined>() || (falsy && !v.truth()) ? argument(a, 0, "default_value", "") : v;
}
Value f_length(Interpreter&, const Value& v, const Arguments&) {
  if (v.is<None>() || v.is_number()) fail(format("object of type '{}' has no len()", v.type()));
  if (v.text() != nullptr) return static_cast<std::int64_t>(characters(*v.text()));
  return static_cast<std::int64_t>(v.iterate().size());
}
Value f_string(Interpreter&, const Value& v, const Arguments&) {
  return v.str();
}
Value f_trim(Interpreter&, const Value& v, const Arguments& a) {
  const Value* set = a.find(0, "chars");
  return stripped(v.str(), set == nullptr || set->is<None>() ? nullptr : set->text(), true, true);
}
Value f_upper(Interpreter&, const Value& v, const Arguments&) {
  return upper(v.str());
}
Value f_lower(Interpreter&, const Value& v, const Arguments&) {
  return lower(v.str());
}
Value f_capitalize(Interpreter&, const Value& v, const Arguments&) {
  return capitalized(v.str());
}
Value f_title(Interpreter&, const Value& v, const Arguments&) {
  return title(v.str());
}
Value f_replace(Interpreter&, const Value& v, const Arguments& a) {
  const Value count = argument(a, 2, "count", std::int64_t{-1});
  return replaced(v.str(), required_text(a, 0, "old", "replace"),
                  required_text(a, 1, "new", "replace"), count.is_integer() ? count.integer() : -1);
}
Value f_join(Interpreter& i, const Value& v, const Arguments& a) {
  const std::string between = argument(a, 0, "d", "").str();
  const Value attribute = argument(a, 1, "attribute", Value());
  std::string made;
  bool first = true;
  for (const Value& one : v.iterate()) {
    if (!first) made += between;
    first = false;
    made += (attribute.is<None>() ? one : attribute_path(i, one, attribute)).str();
    if (made.size() > kMaxText) fail("join: the text is too long");
  }
  return made;
}
Value f_list(Interpreter&, const Value& v, const Arguments&) {
  return list_of(v.iterate());
}
Value f_first(Interpreter&, const Value& v, const Arguments&) {
  const auto items = v.iterate();
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}
Value f_last(Interpreter&, const Value& v, const Arguments&) {
  const auto items = v.iterate();
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}
Value f_reverse(Interpreter&, const Value& v, const Arguments&) {
  auto items = v.iterate();
  std::reverse(items.begin(), items.end());
  if (v.text() == nullptr) return list_of(std::move(items));
  std::string made;
  for (const Value& one : items) made += *one.text();
  return made;
}
Value f_items(Interpreter& i, const Value& v, const Arguments&) {
  if (v.is<Undefined>()) return List{};
  if (v.dict() == nullptr) fail("Can only get item pairs from a mapping.");
  return i.call(find_method(v, "items"), {});
}

Value f_tojson(Interpreter&, const Value& v, const Arguments& a) {
  JsonStyle style;
  style.ensure_ascii = argument(a, 0, "ensure_ascii", false).truth();
  if (const Value indent = argument(a, 1, "indent", Value()); !indent.is<None>()) {
    style.pretty = true;
    if (indent.is_integer() && (indent.integer() < 0 || indent.integer() > 1000))
      fail("tojson: indent must be between 0 and 1000");
    style.indent = indent.is_integer()
                       ? std::string(static_cast<std::size_t>(indent.integer()), ' ')
                       : indent.str();
    style.item_separator.resize(1);  // no space at the end of a line
  }
  if (const Value separators = argument(a, 2, "separators", Value()); !separators.is<None>()) {
    const auto both = separators.iterate();
    if (both.size() != 2) fail("tojson: separators must be two texts");
    style.item_separator = both[0].str();
    style.key_separator = both[1].str();
  }
  style.sort_keys = argument(a, 3, "sort_keys", false).truth();
  return to_json(v, style);
}

Value f_int(Interpreter&, const Value& v, const Arguments& a) {
  const Value absent = argument(a, 0, "default", std::int64_t{0});
  if (v.is_integer()) return v.integer();
  if (const auto* d = v.get<double>())
    return std::isfinite(*d) && std::abs(*d) < 9e18 ? Value(static_cast<std::int64_t>(*d)) : absent;
  if (v.text() == nullptr) return absent;
  const std::string text = stripped(*v.text(), nullptr, true, true);
  std::int64_t made = 0;
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* end = text.data() + text.size();
  if (const auto r = std::from_chars(begin, end, made); r.ec == std::errc() && r.ptr == end)
    return made;
  double real = 0;
  if (const auto r = std::from_chars(begin, end, real);
      r.ec == std::errc() && r.ptr == end && std::abs(real) < 9e18)
    return static_cast<std::int64_t>(real);
  return absent;
}
Value f_float(Interpreter&, const Value& v, const Arguments& a) {
  const Value absent = argument(a, 0, "default", 0.0);
  if (v.is_number()) return v.number();
  if (v.text() == nullptr) return absent;
  const std::string text = stripped(*v.text(), nullptr, true, true);
  double real = 0;
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto r = std::from_chars(begin, text.data() + text.size(), real);
  return r.ec == std::errc() && r.ptr == text.data() + text.size() ? Value(real) : absent;
}
Value f_abs(Interpreter&, const Value& v, const Arguments&) {
  if (!v.defined().is_number()) fail(format("bad operand type for abs(): '{}'", v.type()));
  if (v.is_integer())
    return v.integer() < 0 ? operate("-", std::int64_t{0}, v) : Value(v.integer());
  return std::abs(v.number());
}
Value f_round(Interpreter&, const Value& v, const Arguments& a) {
  if (!v.defined().is_number()) fail(format("type {} doesn't define __round__ method", v.type()));
  const Value precision = argument(a, 0, "precision", std::int64_t{0});
  const std::string method = argument(a, 1, "method", "common").str();
  const double scale = std::pow(10.0, precision.is_number() ? precision.number() : 0.0);
  const double scaled = v.number() * scale;
  return (method == "ceil"    ? std::ceil(scaled)
          : method == "floor" ? std::floor(scaled)
                              : std::nearbyint(scaled)) /
         scale;
}
Value f_indent(Interpreter&, const Value& v, const Arguments& a) {
  const Value width = argument(a, 0, "width", std::int64_t{4});
  if (width.is_integer() && (width.integer() < 0 || width.integer() > 1000))
    fail("indent: the width must be between 0 and 1000");
  const std::string by = width.is_integer()
                             ? std::string(static_cast<std::size_t>(width.integer()), ' ')
                             : width.str();
  return indented(v.str(), by, argument(a, 1, "first", false).truth(),
                  argument(a, 2, "blank", false).truth());
}

/// With two arguments a test and its argument, with one a test, with none truth.
bool selected(Interpreter& i, const Value& v, const Arguments& a, std::size_t from) {
  if (a.list.size() <= from) return v.truth();
  Arguments rest;
  rest.list.assign(a.list.begin() + static_cast<std::ptrdiff_t>(from) + 1, a.list.end());
  rest.named = a.named;
  return i.test(a.list[from].str(), v, rest);
}
template <bool kKeep, bool kAttribute>
Value f_select(Interpreter& i, const Value& v, const Arguments& a) {
  if (kAttribute && a.list.empty()) fail("Missing parameter for attribute name");
  List made;
  for (const Value& one : v.iterate()) {
    const bool holds =
        selected(i, kAttribute ? attribute_path(i, one, a.list[0]) : one, a, kAttribute ? 1 : 0);
    if (holds == kKeep) made.items.push_back(one);
  }
  return made;
}
Value f_map(Interpreter& i, const Value& v, const Arguments& a) {
  const Value* attribute = a.find(kNamedOnly, "attribute");
  const Value* absent = a.find(kNamedOnly, "default");
  if (attribute == nullptr && a.list.empty()) fail("map requires a filter argument");
  Arguments rest;
  if (!a.list.empty()) rest.list.assign(a.list.begin() + 1, a.list.end());
  rest.named = a.named;
  List made;
  for (const Value& one : v.iterate()) {
    if (attribute == nullptr) {
      made.items.push_back(i.filter(a.list[0].str(), one, rest));
      continue;
    }
    Value found = attribute_path(i, one, *attribute);
    made.items.push_back(found.is<Undefined>() && absent != nullptr ? *absent : found);
  }
  return made;
}

/// What items are ordered by: texts without case unless asked.
Value sort_key(Interpreter& i, const Value& v, const Value& attribute, bool case_sensitive) {
  const Value key = attribute.is<None>() ? v : attribute_path(i, v, attribute);
  return key.text() != nullptr && !case_sensitive ? Value(lower(*key.text())) : key;
}
Value f_sort(Interpreter& i, const Value& v, const Arguments& a) {
  const bool reverse = argument(a, 0, "reverse", false).truth();
  const bool cased = argument(a, 1, "case_sensitive", false).truth();
  const Value attribute = argument(a, 2, "attribute", Value());
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& one : v.iterate()) keyed.emplace_back(sort_key(i, one, attribute, cased), one);
  spend(keyed.size() * 16);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& x, const auto& y) {
    return reverse ? compare(y.first, x.first) < 0 : compare(x.first, y.first) < 0;
  });
  List made;
  for (auto& [key, one] : keyed) made.items.push_back(std::move(one));
  return made;
}
Value f_dictsort(Interpreter& i, const Value& v, const Arguments& a) {
  const bool cased = argument(a, 0, "case_sensitive", false).truth();
  const bool by_value = argument(a, 1, "by", "key").str() == "value";
  const bool reverse = argument(a, 2, "reverse", false).truth();
  std::vector<Value> pairs = f_items(i, v, {}).iterate();
  const auto key = [&](const Value& pair) {
    return sort_key(i, pair.list()->items[by_value ? 1 : 0], Value(), cased);
  };
  std::stable_sort(pairs.begin(), pairs.end(), [&](const Value& x, const Value& y) {
    return reverse ? compare(key(y), key(x)) < 0 : compare(key(x), key(y)) < 0;
  });
  return list_of(std::move(pairs));
}
Value f_unique(Interpreter& i, const Value& v, const Arguments& a) {
  std::vector<Value> keys;
  List made;
  for (const Value& one : v.iterate()) {
    Value key = sort_key(i, one, argument(a, 1, "attribute", Value()),
                         argument(a, 0, "case_sensitive", false).truth());
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& k) { return equal(k, key); }))
      continue;
    keys.push_back(std::move(key));
    made.items.push_back(one);
  }
  return made;
}
template <int kSign>
Value f_extreme(Interpreter& i, const Value& v, const Arguments& a) {
  const bool cased = argument(a, 0, "case_sensitive", false).truth();
  const Value attribute = argument(a, 1, "attribute", Value());
  const std::vector<Value> items = v.iterate();
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const Value* best = &items.front();
  for (const Value& one : items) {
    if (compare(sort_key(i, one, attribute, cased), sort_key(i, *best, attribute, cased)) * kSign >
        0)
      best = &one;
  }
  return *best;
}
Value f_sum(Interpreter& i, const Value& v, const Arguments& a) {
  const Value attribute = argument(a, 0, "attribute", Value());
  Value made = argument(a, 1, "start", std::int64_t{0});
  for (const Value& one : v.iterate())
    made = operate("+", made, attribute.is<None>() ? one : attribute_path(i, one, attribute));
  return made;
}
Value f_batch(Interpreter&, const Value& v, const Arguments& a) {
  const Value size = argument(a, 0, "linecount", Value());
  if (!size.is_integer() || size.integer() < 1) fail("batch: linecount must be at least 1");
  const Value* fill = a.find(1, "fill_with");
  List made, row;
  for (const Value& one : v.iterate()) {
    row.items.push_back(one);
    if (static_cast<std::int64_t>(row.items.size()) == size.integer())
      made.items.emplace_back(std::exchange(row, {}));
  }
  if (row.items.empty()) return made;
  while (fill != nullptr && !fill->is<None>() &&
         static_cast<std::int64_t>(row.items.size()) < size.integer()) {
    spend(1);
    row.items.push_back(*fill);
  }
  made.items.emplace_back(std::move(row));
  return made;
}
Value f_escape(Interpreter&, const Value& v, const Arguments&) {
  std::string made = replaced(v.str(), "&", "&amp;", -1);
  for (const auto& [from, to] :
       {std::pair{"<", "&lt;"}, {">", "&gt;"}, {"\"", "&#34;"}, {"'", "&#39;"}})
    made = replaced(made, from, to, -1);
  return made;
}
Value f_attr(Interpreter& i, const Value& v, const Arguments& a) {
  return v.dict() != nullptr ? find_method(v, required_text(a, 0, "name", "attr"))
                             : i.attribute(v, required_text(a, 0, "name", "attr"));
}
Value f_wordcount(Interpreter&, const Value& v, const Arguments&) {
  return static_cast<std::int64_t>(words(v.str()).size());
}

}  // namespace

Filter find_filter(std::string_view name) {
  static const std::map<std::string_view, Filter> known = {{"abs", f_abs},
                                                           {"attr", f_attr},
                                                           {"batch", f_batch},
                                                           {"capitalize", f_capitalize},
                                                           {"count", f_length},
                                                           {"d", f_default},
                                                           {"default", f_default},
                                                           {"dictsort", f_dictsort},
                                                           {"e", f_escape},
                                                           {"escape", f_escape},
                                                           {"first", f_first},
                                                           {"float", f_float},
                                                           {"indent", f_indent},
                                                           {"int", f_int},
                                                           {"items", f_items},
                                                           {"join", f_join},
                                                           {"last", f_last},
                                                           {"length", f_length},
                                                           {"list", f_list},
                                                           {"lower", f_lower},
                                                           {"map", f_map},
                                                           {"max", f_extreme<1>},
                                                           {"min", f_extreme<-1>},
                                                           {"reject", f_select<false, false>},
                                                           {"rejectattr", f_select<false, true>},
                                                           {"replace", f_replace},
                                                           {"reverse", f_reverse},
                                                           {"round", f_round},
                                                           {"safe", f_string},
                                                           {"select", f_select<true, false>},
                                                           {"selectattr", f_select<true, true>},
                                                           {"sort", f_sort},
                                                           {"string", f_string},
                                                           {"sum", f_sum},
                                                           {"title", f_title},
                                                           {"tojson", f_tojson},
                                                           {"trim", f_trim},
                                                           {"unique", f_unique},
                                                           {"upper", f_upper},
                                                           {"wordcount", f_wordcount}};
  const auto it = known.find(name);
  return it == known.end() ? nullptr : it->second;
}

}  // namespace neap::chat
