#include "text/chat/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/format.h"
#include "text/chat/text.h"
#include "text/tokenizer/utf8.h"

namespace neap::chat {

namespace utf8 = text::utf8;

namespace {
int checked_depth(int depth) {
  check_levels(depth, "a value");
  return depth;
}
}  // namespace

Value::Value(List l) {
  for (const Value& item : l.items) l.depth = std::max(l.depth, checked_depth(item.depth() + 1));
  const Counted<List> allocator(l.items.get_allocator());
  v_ = ListPtr(std::allocate_shared<List>(allocator, std::move(l)));
}
Value::Value(Dict d) {
  for (const auto& [key, item] : d.items)
    d.depth = std::max(d.depth, checked_depth(std::max(key.depth(), item.depth()) + 1));
  const Counted<Dict> allocator(d.items.get_allocator());
  v_ = DictPtr(std::allocate_shared<Dict>(allocator, std::move(d)));
}
Value::Value(Loop l) {
  checked_depth(l.nesting);
  const Counted<Loop> allocator(l.items.get_allocator());
  v_ = std::allocate_shared<Loop>(allocator, std::move(l));
}
Value::Value(Callable c, Budget& budget) {
  c.depth = checked_depth(c.object.depth() + 1);
  v_ = std::shared_ptr<const Callable>(
      std::allocate_shared<Callable>(Counted<Callable>(budget), std::move(c)));
}
Value Value::function(Function call, const Value& object, Budget& budget) {
  return {Callable{call, object, nullptr, nullptr}, budget};
}
int Value::depth() const {
  if (list() != nullptr) return list()->depth;
  if (dict() != nullptr) return dict()->depth;
  if (loop()) return loop()->nesting;
  return callable() != nullptr ? callable()->depth : 0;
}

const Value* Arguments::find(std::size_t position, std::string_view name) const {
  if (position < list.size()) return &list[position];
  named.get_allocator().budget().spend(named.size() / 8);
  for (const auto& [key, value] : named) {
    if (key.view() == name) return &value;
  }
  return nullptr;
}

const Value* Dict::find(const Value& key, Budget& budget) const {
  for (const auto& [k, v] : items) {
    if (equal(k, key, budget)) return &v;
  }
  return nullptr;
}
const Value* Dict::find_text(std::string_view key, Budget& budget) const {
  budget.spend(items.size() / 16);
  for (const auto& [k, v] : items) {
    if (k.text() != nullptr && k.text()->view() == key) return &v;
  }
  return nullptr;
}
void Dict::set(const Value& key, Value value) {
  for (auto& [k, v] : items) {
    if (!equal(k, key, items.get_allocator().budget())) continue;
    v = std::move(value);
    return;
  }
  items.emplace_back(key, std::move(value));
}

Value Value::of_json(const Json& json, Budget& budget) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<std::int64_t>();
    case Json::value_t::number_unsigned:
      if (json.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
        return static_cast<double>(json.get<std::uint64_t>());
      return json.get<std::int64_t>();
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return Text::outside(json.get_ref<const std::string&>());
    case Json::value_t::array: {
      List list(budget);
      list.items.reserve(json.size());
      for (const Json& item : json) list.items.push_back(of_json(item, budget));
      return list;
    }
    case Json::value_t::object: {
      Dict dict(budget);
      dict.items.reserve(json.size());
      for (auto it = json.begin(); it != json.end(); ++it)
        dict.items.emplace_back(Text::outside(it.key()), of_json(*it, budget));
      return dict;
    }
    default:
      return {};
  }
}

std::int64_t Value::integer() const {
  const auto* b = get<bool>();
  return b != nullptr ? static_cast<std::int64_t>(*b) : *get<std::int64_t>();
}
double Value::number() const {
  const auto* d = get<double>();
  return d != nullptr ? *d : static_cast<double>(integer());
}

bool Value::truth() const {
  if (is<Undefined>() || is<None>()) return false;
  if (is_number()) return number() != 0;
  if (text() != nullptr) return !text()->empty();
  if (list() != nullptr) return !list()->items.empty();
  if (dict() != nullptr) return !dict()->items.empty();
  return true;
}

const Value& Value::defined() const {
  if (const auto* u = get<Undefined>()) fail(u->why.view());
  return *this;
}

const char* Value::type() const {
  static constexpr const char* kNames[] = {"Undefined", "NoneType", "bool",       "int",
                                           "float",     "str",      "list",       "dict",
                                           "Namespace", "function", "LoopContext"};
  return list() != nullptr && list()->tuple ? "tuple" : kNames[v_.index()];
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string made(buffer, end.ptr);
  const std::size_t e = made.find('e');
  const int exponent = std::atoi(made.c_str() + e + 1);
  if (exponent < -4 || exponent >= 16) {
    const std::string digits = std::to_string(std::abs(exponent));
    return made.substr(0, e) + (exponent < 0 ? "e-" : "e+") + (digits.size() < 2 ? "0" : "") +
           digits;
  }
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  std::string text(buffer, fixed.ptr);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

namespace {

bool is_printable(std::int32_t c) {
  return !(c < 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200f) || (c >= 0x2028 && c <= 0x202f) ||
           (c >= 0x205f && c <= 0x206f) || c == 0x3000 || c == 0xfeff ||
           (c >= 0xe000 && c <= 0xf8ff));
}

void append_quoted(String& out, std::string_view text) {
  const char quote =
      text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  out += quote;
  for (std::string_view rest = text; !rest.empty();) {
    const utf8::Point p = utf8::front(rest);
    const std::string_view bytes = rest.substr(0, p.bytes);
    rest.remove_prefix(p.bytes);
    if (p.value == quote || p.value == '\\') {
      out += '\\';
      out += bytes;
    } else if (p.value == '\n' || p.value == '\r' || p.value == '\t') {
      out += p.value == '\n' ? "\\n" : p.value == '\r' ? "\\r" : "\\t";
    } else if (p.value < 0 || is_printable(p.value)) {
      out += bytes;
    } else {
      out += p.value < 0x100 ? format("\\x{:02x}", p.value) : format("\\u{:04x}", p.value);
    }
  }
  out += quote;
}

// Values share their parts, so a small value can have a text of any length.
void append_repr(String& out, const Value& value, Budget& budget) {
  budget.spend(1);
  check_length(out.size());
  bool first = true;
  const auto between = [&] {
    if (!std::exchange(first, false)) out += ", ";
  };
  if (value.is<Undefined>()) {
    out += "Undefined";
  } else if (value.is<None>()) {
    out += "None";
  } else if (const auto* b = value.get<bool>()) {
    out += *b ? "True" : "False";
  } else if (const auto* d = value.get<double>()) {
    out += float_text(*d);
  } else if (value.is_integer()) {
    out += std::to_string(value.integer());
  } else if (value.text() != nullptr) {
    budget.read(value.text()->size());
    append_quoted(out, *value.text());
  } else if (value.list() != nullptr) {
    const List& list = *value.list();
    out += list.tuple ? '(' : '[';
    for (const Value& item : list.items) {
      between();
      append_repr(out, item, budget);
    }
    out += !list.tuple ? "]" : list.items.size() == 1 ? ",)" : ")";
  } else if (value.dict() != nullptr) {
    out += '{';
    for (const auto& [key, item] : value.dict()->items) {
      between();
      append_repr(out, key, budget);
      out += ": ";
      append_repr(out, item, budget);
    }
    out += '}';
  } else {
    out += format("<{}>", value.type());
  }
}

}  // namespace

Text Value::str(Budget& budget) const {
  if (is<Undefined>()) return {};
  return text() != nullptr ? *text() : repr(budget);
}

Text Value::repr(Budget& budget) const {
  String out(budget);
  append_repr(out, *this, budget);
  return out;
}

std::size_t character_bytes(std::string_view text) {
  return utf8::front(text).bytes;
}
void fail_not_iterable(const Value& value) {
  fail(format("'{}' object is not iterable", value.type()));
}

Vector<Value> Value::iterate(Budget& budget) const {
  if (list() != nullptr) return list()->items;
  Vector<Value> out(budget);
  each(budget, [&](const Value& item) { out.push_back(item); });
  return out;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.spend(1);
  if (a.is_number() && b.is_number())
    return a.is_integer() && b.is_integer() ? a.integer() == b.integer() : a.number() == b.number();
  if (a.is<Undefined>() || b.is<Undefined>()) return a.is<Undefined>() && b.is<Undefined>();
  if (a.is<None>() || b.is<None>()) return a.is<None>() && b.is<None>();
  if (a.text() != nullptr && b.text() != nullptr) {
    if (a.text()->size() != b.text()->size()) return false;
    budget.read(a.text()->size());
    return a.text()->view() == b.text()->view();
  }
  const auto same = [&](const Value& x, const Value& y) { return equal(x, y, budget); };
  if (a.list() != nullptr && b.list() != nullptr)
    return a.list()->tuple == b.list()->tuple &&
           std::equal(a.list()->items.begin(), a.list()->items.end(), b.list()->items.begin(),
                      b.list()->items.end(), same);
  if (a.dict() != nullptr && b.dict() != nullptr) {
    const auto& items = a.dict()->items;
    return items.size() == b.dict()->items.size() &&
           std::all_of(items.begin(), items.end(), [&](const auto& item) {
             const Value* other = b.dict()->find(item.first, budget);
             return other != nullptr && same(item.second, *other);
           });
  }
  if (a.space() != nullptr) return a.space() == b.space();
  if (a.callable() != nullptr) return a.callable() == b.callable();
  return a.loop() != nullptr && a.loop() == b.loop();
}

int compare(const Value& a, const Value& b, Budget& budget) {
  a.defined();
  b.defined();
  budget.spend(1);
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer())
      return a.integer() < b.integer() ? -1 : a.integer() > b.integer() ? 1 : 0;
    return a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : 0;
  }
  if (a.text() != nullptr && b.text() != nullptr) {
    budget.read(std::min(a.text()->size(), b.text()->size()));
    return a.text()->view().compare(b.text()->view());
  }
  if (a.list() != nullptr && b.list() != nullptr) {
    const auto& left = a.list()->items;
    const auto& right = b.list()->items;
    for (std::size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!equal(left[i], right[i], budget)) return compare(left[i], right[i], budget);
    }
    return left.size() < right.size() ? -1 : left.size() > right.size() ? 1 : 0;
  }
  fail(format("'<' not supported between instances of '{}' and '{}'", a.type(), b.type()));
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  if (container.is<Undefined>()) return false;
  if (container.text() != nullptr) {
    if (item.text() == nullptr) {
      item.defined();
      fail(format("'in <string>' requires string as left operand, not {}", item.type()));
    }
    return find_part(*container.text(), *item.text(), budget) != std::string_view::npos;
  }
  if (container.dict() != nullptr) return container.dict()->find(item, budget) != nullptr;
  if (container.list() == nullptr)
    fail(format("argument of type '{}' is not iterable", container.type()));
  const auto& items = container.list()->items;
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& v) { return equal(v, item, budget); });
}

}  // namespace neap::chat
