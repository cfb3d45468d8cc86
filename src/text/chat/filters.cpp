// Jinja2 filters that chat templates use.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "base/format.h"
#include "text/chat/interpreter.h"
#include "text/chat/text.h"

namespace neap::chat {
namespace {

constexpr std::size_t kNamedOnly = ~std::size_t{0};

Value argument(const Arguments& a, std::size_t position, const char* name, const Value& absent) {
  const Value* found = a.find(position, name);
  return found == nullptr ? absent : *found;
}
Text required_text(Interpreter& i, const Arguments& a, std::size_t position, const char* name,
                   const char* filter) {
  const Value* found = a.find(position, name);
  if (found == nullptr) fail(format("the filter '{}' lacks the argument '{}'", filter, name));
  return found->str(i.budget());
}

/// Resolves a path such as "a.b.0" in an item, for the `attribute` argument of filters.
Value attribute_path(Interpreter& i, Value value, const Value& path) {
  if (path.is_integer()) return i.item(value, path);
  const Text text = path.str(i.budget());
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.view().find('.', at), text.size());
    const Text part = text.part(at, end - at);
    std::int64_t number = 0;
    const char* const last = part.view().data() + part.size();
    const auto read = std::from_chars(part.view().data(), last, number);
    const bool is_number =
        !part.empty() && part.view().front() != '-' && read.ptr == last && read.ec == std::errc();
    value = is_number ? i.item(value, number) : i.item(value, part);
    at = end + 1;
  }
  return value;
}

Value f_default(Interpreter&, const Value& v, const Arguments& a) {
  const bool falsy = argument(a, 1, "boolean", false).truth();
  return v.is<Undefined>() || (falsy && !v.truth()) ? argument(a, 0, "default_value", "") : v;
}
Value f_length(Interpreter& i, const Value& v, const Arguments&) {
  if (v.is<None>() || v.is_number()) fail(format("object of type '{}' has no len()", v.type()));
  if (v.text() != nullptr) return static_cast<std::int64_t>(characters(*v.text(), i.budget()));
  std::int64_t n = 0;
  v.each(i.budget(), [&](const Value&) { ++n; });
  return n;
}
Value f_string(Interpreter& i, const Value& v, const Arguments&) {
  return v.str(i.budget());
}
Value f_trim(Interpreter& i, const Value& v, const Arguments& a) {
  const Value* set = a.find(0, "chars");
  return stripped(v.str(i.budget()), set == nullptr || set->is<None>() ? nullptr : set->text(),
                  true, true, i.budget());
}
Value f_upper(Interpreter& i, const Value& v, const Arguments&) {
  return upper(v.str(i.budget()), i.budget());
}
Value f_lower(Interpreter& i, const Value& v, const Arguments&) {
  return lower(v.str(i.budget()), i.budget());
}
Value f_capitalize(Interpreter& i, const Value& v, const Arguments&) {
  return capitalized(v.str(i.budget()), i.budget());
}
Value f_title(Interpreter& i, const Value& v, const Arguments&) {
  return title(v.str(i.budget()), i.budget());
}
Value f_replace(Interpreter& i, const Value& v, const Arguments& a) {
  const Value count = argument(a, 2, "count", std::int64_t{-1});
  return replaced(v.str(i.budget()), required_text(i, a, 0, "old", "replace"),
                  required_text(i, a, 1, "new", "replace"),
                  count.is_integer() ? count.integer() : -1, i.budget());
}
Value f_join(Interpreter& i, const Value& v, const Arguments& a) {
  const Text between = argument(a, 0, "d", "").str(i.budget());
  const Value attribute = argument(a, 1, "attribute", Value());
  String made(i.budget());
  bool first = true;
  v.each(i.budget(), [&](const Value& one) {
    if (!std::exchange(first, false)) made += between;
    made += (attribute.is<None>() ? one : attribute_path(i, one, attribute)).str(i.budget());
  });
  return made;
}
Value f_list(Interpreter& i, const Value& v, const Arguments&) {
  return List(v.iterate(i.budget()));
}
Value f_first(Interpreter& i, const Value& v, const Arguments&) {
  if (v.text() != nullptr && !v.text()->empty())
    return v.text()->part(0, character_bytes(*v.text()));
  const auto items = v.iterate(i.budget());
  return items.empty() ? Value::undefined("No first item, sequence was empty.", i.budget())
                       : items.front();
}
Value f_last(Interpreter& i, const Value& v, const Arguments&) {
  const auto items = v.iterate(i.budget());
  return items.empty() ? Value::undefined("No last item, sequence was empty.", i.budget())
                       : items.back();
}
Value f_reverse(Interpreter& i, const Value& v, const Arguments&) {
  auto items = v.iterate(i.budget());
  std::reverse(items.begin(), items.end());
  if (v.text() == nullptr) return List(std::move(items));
  String made(i.budget());
  for (const Value& one : items) made += *one.text();
  return made;
}
Value f_items(Interpreter& i, const Value& v, const Arguments&) {
  if (v.is<Undefined>()) return List(i.budget());
  if (v.dict() == nullptr) fail("Can only get item pairs from a mapping.");
  return items_of(*v.dict(), i.budget());
}

/// As many spaces as the number `value`, or the text `value` itself.
Text indent_of(Interpreter& i, const Value& value, const char* what) {
  if (!value.is_integer()) return value.str(i.budget());
  if (value.integer() < 0 || value.integer() > 1000)
    fail(format("{} must be between 0 and 1000", what));
  return String(static_cast<std::size_t>(value.integer()), ' ', i.budget());
}

Value f_tojson(Interpreter& i, const Value& v, const Arguments& a) {
  JsonStyle style;
  style.ensure_ascii = argument(a, 0, "ensure_ascii", false).truth();
  if (const Value indent = argument(a, 1, "indent", Value()); !indent.is<None>()) {
    style.pretty = true;
    style.indent = indent_of(i, indent, "tojson: indent");
    style.item_separator = Text::outside(",");  // no space at the end of a line
  }
  if (const Value separators = argument(a, 2, "separators", Value()); !separators.is<None>()) {
    const auto both = separators.iterate(i.budget());
    if (both.size() != 2) fail("tojson: separators must be two texts");
    style.item_separator = both[0].str(i.budget());
    style.key_separator = both[1].str(i.budget());
  }
  style.sort_keys = argument(a, 3, "sort_keys", false).truth();
  return to_json(v, style, i.budget());
}

Value f_int(Interpreter& i, const Value& v, const Arguments& a) {
  Value absent = argument(a, 0, "default", std::int64_t{0});
  if (v.is_integer()) return v.integer();
  if (const auto* d = v.get<double>())
    return std::isfinite(*d) && std::abs(*d) < 9e18 ? Value(static_cast<std::int64_t>(*d)) : absent;
  if (v.text() == nullptr) return absent;
  const Text stripped_text = stripped(*v.text(), nullptr, true, true, i.budget());
  const std::string_view text = stripped_text;
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
Value f_float(Interpreter& i, const Value& v, const Arguments& a) {
  Value absent = argument(a, 0, "default", 0.0);
  if (v.is_number()) return v.number();
  if (v.text() == nullptr) return absent;
  const Text stripped_text = stripped(*v.text(), nullptr, true, true, i.budget());
  const std::string_view text = stripped_text;
  double real = 0;
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto r = std::from_chars(begin, text.data() + text.size(), real);
  return r.ec == std::errc() && r.ptr == text.data() + text.size() ? Value(real) : absent;
}
Value f_abs(Interpreter& i, const Value& v, const Arguments&) {
  if (!v.defined().is_number()) fail(format("bad operand type for abs(): '{}'", v.type()));
  if (v.is_integer())
    return v.integer() < 0 ? operate("-", std::int64_t{0}, v, i.budget()) : Value(v.integer());
  return std::abs(v.number());
}
Value f_round(Interpreter& i, const Value& v, const Arguments& a) {
  if (!v.defined().is_number()) fail(format("type {} doesn't define __round__ method", v.type()));
  const Value precision = argument(a, 0, "precision", std::int64_t{0});
  const Text named = argument(a, 1, "method", "common").str(i.budget());
  const std::string_view method = named;
  const double scale = std::pow(10.0, precision.is_number() ? precision.number() : 0.0);
  const double scaled = v.number() * scale;
  return (method == "ceil"    ? std::ceil(scaled)
          : method == "floor" ? std::floor(scaled)
                              : std::nearbyint(scaled)) /
         scale;
}
Value f_indent(Interpreter& i, const Value& v, const Arguments& a) {
  const Value width = argument(a, 0, "width", std::int64_t{4});
  return indented(v.str(i.budget()), indent_of(i, width, "indent: the width"),
                  argument(a, 1, "first", false).truth(), argument(a, 2, "blank", false).truth(),
                  i.budget());
}

/// With two arguments they are a test and its argument, with one it is a test. Without arguments
/// the truth value decides.
bool selected(Interpreter& i, const Value& v, const Arguments& a, std::size_t from) {
  if (a.list.size() <= from) return v.truth();
  Arguments rest(i.budget());
  rest.list.assign(a.list.begin() + static_cast<std::ptrdiff_t>(from) + 1, a.list.end());
  rest.named = a.named;
  return i.test(a.list[from].str(i.budget()), v, rest);
}
template <bool kKeep, bool kAttribute>
Value f_select(Interpreter& i, const Value& v, const Arguments& a) {
  if (kAttribute && a.list.empty()) fail("Missing parameter for attribute name");
  List made(i.budget());
  v.each(i.budget(), [&](const Value& one) {
    const bool holds =
        selected(i, kAttribute ? attribute_path(i, one, a.list[0]) : one, a, kAttribute ? 1 : 0);
    if (holds == kKeep) made.items.push_back(one);
  });
  return made;
}
Value f_map(Interpreter& i, const Value& v, const Arguments& a) {
  const Value* attribute = a.find(kNamedOnly, "attribute");
  const Value* absent = a.find(kNamedOnly, "default");
  if (attribute == nullptr && a.list.empty()) fail("map requires a filter argument");
  Arguments rest(i.budget());
  if (!a.list.empty()) rest.list.assign(a.list.begin() + 1, a.list.end());
  rest.named = a.named;
  List made(i.budget());
  v.each(i.budget(), [&](const Value& one) {
    if (attribute == nullptr) {
      made.items.push_back(i.filter(a.list[0].str(i.budget()), one, rest));
      return;
    }
    Value found = attribute_path(i, one, *attribute);
    made.items.push_back(found.is<Undefined>() && absent != nullptr ? *absent : found);
  });
  return made;
}

/// Sort key of an item. Texts are compared without case unless requested.
Value sort_key(Interpreter& i, const Value& v, const Value& attribute, bool case_sensitive) {
  const Value key = attribute.is<None>() ? v : attribute_path(i, v, attribute);
  return key.text() != nullptr && !case_sensitive ? Value(lower(*key.text(), i.budget())) : key;
}
using Keyed = Vector<std::pair<Value, Value>>;
Value sorted(Interpreter& i, Keyed keyed, bool reverse) {
  Keyed other(i.budget());
  other.reserve(keyed.size());  // std::stable_sort allocates this much
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& x, const auto& y) {
    return reverse ? compare(y.first, x.first, i.budget()) < 0
                   : compare(x.first, y.first, i.budget()) < 0;
  });
  List made(i.budget());
  for (auto& [key, one] : keyed) made.items.push_back(std::move(one));
  return made;
}
Value f_sort(Interpreter& i, const Value& v, const Arguments& a) {
  const bool cased = argument(a, 1, "case_sensitive", false).truth();
  const Value attribute = argument(a, 2, "attribute", Value());
  Keyed keyed(i.budget());
  v.each(i.budget(),
         [&](const Value& one) { keyed.emplace_back(sort_key(i, one, attribute, cased), one); });
  return sorted(i, std::move(keyed), argument(a, 0, "reverse", false).truth());
}
Value f_dictsort(Interpreter& i, const Value& v, const Arguments& a) {
  const bool cased = argument(a, 0, "case_sensitive", false).truth();
  const bool by_value = argument(a, 1, "by", "key").str(i.budget()).view() == "value";
  Keyed keyed(i.budget());
  f_items(i, v, a).each(i.budget(), [&](const Value& pair) {
    keyed.emplace_back(sort_key(i, pair.list()->items[by_value ? 1 : 0], Value(), cased), pair);
  });
  return sorted(i, std::move(keyed), argument(a, 2, "reverse", false).truth());
}
Value f_unique(Interpreter& i, const Value& v, const Arguments& a) {
  const bool cased = argument(a, 0, "case_sensitive", false).truth();
  const Value attribute = argument(a, 1, "attribute", Value());
  Vector<Value> keys(i.budget());
  List made(i.budget());
  v.each(i.budget(), [&](const Value& one) {
    Value key = sort_key(i, one, attribute, cased);
    if (std::any_of(keys.begin(), keys.end(),
                    [&](const Value& k) { return equal(k, key, i.budget()); }))
      return;
    keys.push_back(std::move(key));
    made.items.push_back(one);
  });
  return made;
}
template <int kSign>
Value f_extreme(Interpreter& i, const Value& v, const Arguments& a) {
  const bool cased = argument(a, 0, "case_sensitive", false).truth();
  const Value attribute = argument(a, 1, "attribute", Value());
  std::optional<Value> best, best_key;
  v.each(i.budget(), [&](const Value& one) {
    Value key = sort_key(i, one, attribute, cased);
    if (best && compare(key, *best_key, i.budget()) * kSign <= 0) return;
    best = one;
    best_key = std::move(key);
  });
  return best ? *best : Value::undefined("No aggregated item, sequence was empty.", i.budget());
}
Value f_sum(Interpreter& i, const Value& v, const Arguments& a) {
  const Value attribute = argument(a, 0, "attribute", Value());
  Value made = argument(a, 1, "start", std::int64_t{0});
  v.each(i.budget(), [&](const Value& one) {
    made = operate("+", made, attribute.is<None>() ? one : attribute_path(i, one, attribute),
                   i.budget());
  });
  return made;
}
Value f_batch(Interpreter& i, const Value& v, const Arguments& a) {
  const Value size = argument(a, 0, "linecount", Value());
  if (!size.is_integer() || size.integer() < 1) fail("batch: linecount must be at least 1");
  const auto wanted = static_cast<std::size_t>(size.integer());
  const Value* fill = a.find(1, "fill_with");
  List made(i.budget()), row(i.budget());
  v.each(i.budget(), [&](const Value& one) {
    row.items.push_back(one);
    if (row.items.size() == wanted) made.items.emplace_back(std::exchange(row, List(i.budget())));
  });
  if (row.items.empty()) return made;
  while (fill != nullptr && !fill->is<None>() && row.items.size() < wanted)
    row.items.push_back(*fill);
  made.items.emplace_back(std::move(row));
  return made;
}
Value f_escape(Interpreter& i, const Value& v, const Arguments&) {
  Text made = replaced(v.str(i.budget()), "&", "&amp;", -1, i.budget());
  for (const auto& [from, to] :
       {std::pair{"<", "&lt;"}, {">", "&gt;"}, {"\"", "&#34;"}, {"'", "&#39;"}})
    made = replaced(made, from, to, -1, i.budget());
  return made;
}
Value f_attr(Interpreter& i, const Value& v, const Arguments& a) {
  const Text name = required_text(i, a, 0, "name", "attr");
  if (v.dict() == nullptr) return i.attribute(v, name);
  Value method = find_method(v, name, i.budget());
  return method.is<None>() ? Value::undefined("no such method", i.budget()) : method;
}
Value f_wordcount(Interpreter& i, const Value& v, const Arguments&) {
  return static_cast<std::int64_t>(words(v.str(i.budget()), -1, i.budget()).size());
}

}  // namespace

Filter find_filter(std::string_view name) {
  static const std::map<std::string_view, Filter> kKnown = {{"abs", f_abs},
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
  const auto it = kKnown.find(name);
  return it == kKnown.end() ? nullptr : it->second;
}

}  // namespace neap::chat
