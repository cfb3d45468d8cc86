// Values of chat templates: what Jinja2 has, with Python's text, equality and order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/json.h"
#include "text/chat/budget.h"

namespace neap::chat {

inline constexpr int kMaxValueDepth = 600;

class Interpreter;
class Value;
struct Statement;
struct Scope;
struct Callable;

struct Arguments {
  explicit Arguments(Budget& budget);
  Vector<Value> list;
  Vector<std::pair<Text, Value>> named;
  /// The argument at `position` or called `name`, or nullptr.
  [[nodiscard]] const Value* find(std::size_t position, std::string_view name) const;
};

struct Undefined {
  Text why;  ///< the message of using it
};
struct None {};
struct List {
  explicit List(Budget& budget);
  explicit List(Vector<Value> made);
  Vector<Value> items;
  bool tuple = false;
  int depth = 1;  ///< of the nesting; bounded, because values are read and freed by recursion
};
struct Dict {
  explicit Dict(Budget& budget);
  Vector<std::pair<Value, Value>> items;
  int depth = 1;
  [[nodiscard]] const Value* find(const Value& key, Budget& budget) const;
  [[nodiscard]] const Value* find_text(std::string_view key, Budget& budget) const;
  void set(const Value& key, Value value);
};
/// An object with attributes that a template can set: namespace().
struct Namespace {
  explicit Namespace(Budget& budget);
  Dict attributes;
};
/// The variable `loop`.
struct Loop {
  explicit Loop(Vector<Value> all);
  Vector<Value> items;
  std::size_t index = 0;
  int level = 0;    ///< of recursive loops
  int nesting = 1;  ///< of the values that it holds
  Vector<Value> last_changed;
  bool changed_before = false;
  const Statement* recursive = nullptr;  ///< of a recursive loop
  std::shared_ptr<Scope> scope;          ///< around a recursive loop
};

class Value {
 public:
  /// Of functions and methods: `object` is what the method belongs to.
  using Function = Value (*)(Interpreter&, const Value& object, const Arguments&);
  using ListPtr = std::shared_ptr<const List>;
  using DictPtr = std::shared_ptr<const Dict>;
  Value() : v_(None{}) {}
  Value(Undefined u) : v_(std::move(u)) {}     // NOLINT
  Value(bool b) : v_(b) {}                     // NOLINT
  Value(std::int64_t i) : v_(i) {}             // NOLINT
  Value(double d) : v_(d) {}                   // NOLINT
  Value(Text t) : v_(std::move(t)) {}          // NOLINT
  Value(String s) : v_(Text(std::move(s))) {}  // NOLINT
  template <std::size_t kSize>
  Value(const char (&literal)[kSize])  // NOLINT
      : v_(Text::outside({static_cast<const char*>(literal), kSize - 1})) {}
  Value(const void*) = delete;                               // would be a bool
  Value(List l);                                             // NOLINT
  Value(Dict d);                                             // NOLINT
  Value(std::shared_ptr<Namespace> n) : v_(std::move(n)) {}  // NOLINT
  Value(Callable c, Budget& budget);
  explicit Value(Loop l);
  /// Its texts are those of `json`, which outlives the rendering.
  static Value of_json(const Json& json, Budget& budget);
  static Value undefined(std::string_view why, Budget& budget) {
    return Undefined{Text::copy(why, budget)};
  }
  static Value function(Function call, const Value& object, Budget& budget);
  [[nodiscard]] int depth() const;

  template <class T>
  [[nodiscard]] bool is() const {
    return std::holds_alternative<T>(v_);
  }
  template <class T>
  [[nodiscard]] const T* get() const {
    return std::get_if<T>(&v_);
  }
  [[nodiscard]] const Text* text() const { return std::get_if<Text>(&v_); }
  [[nodiscard]] const List* list() const {
    const auto* p = std::get_if<ListPtr>(&v_);
    return p == nullptr ? nullptr : p->get();
  }
  [[nodiscard]] const Dict* dict() const {
    const auto* p = std::get_if<DictPtr>(&v_);
    return p == nullptr ? nullptr : p->get();
  }
  [[nodiscard]] Namespace* space() const {
    const auto* p = std::get_if<std::shared_ptr<Namespace>>(&v_);
    return p == nullptr ? nullptr : p->get();
  }
  [[nodiscard]] const Callable* callable() const {
    const auto* p = std::get_if<std::shared_ptr<const Callable>>(&v_);
    return p == nullptr ? nullptr : p->get();
  }
  [[nodiscard]] std::shared_ptr<Loop> loop() const {
    const auto* p = std::get_if<std::shared_ptr<Loop>>(&v_);
    return p == nullptr ? nullptr : *p;
  }
  /// bool, int or float.
  [[nodiscard]] bool is_number() const { return is<bool>() || is<std::int64_t>() || is<double>(); }
  [[nodiscard]] bool is_integer() const { return is<bool>() || is<std::int64_t>(); }
  [[nodiscard]] std::int64_t integer() const;  ///< of an is_integer()
  [[nodiscard]] double number() const;         ///< of an is_number()

  [[nodiscard]] bool truth() const;
  [[nodiscard]] Text str(Budget& budget) const;   ///< Python's str()
  [[nodiscard]] Text repr(Budget& budget) const;  ///< Python's repr()
  [[nodiscard]] const char* type() const;         ///< Python's name of the type
  /// Fails with the reason if this is undefined.
  const Value& defined() const;
  /// What iterating gives: items, characters, keys. Fails for what is not iterable.
  [[nodiscard]] Vector<Value> iterate(Budget& budget) const;
  /// Calls `visit` with each of them in order.
  template <class Visit>
  void each(Budget& budget, const Visit& visit) const;

 private:
  std::variant<Undefined, None, bool, std::int64_t, double, Text, ListPtr, DictPtr,
               std::shared_ptr<Namespace>, std::shared_ptr<const Callable>, std::shared_ptr<Loop>>
      v_;
};

// Here, where Value is complete.
inline Arguments::Arguments(Budget& budget) : list(budget), named(budget) {}
inline List::List(Budget& budget) : items(budget) {}
inline List::List(Vector<Value> made) : items(std::move(made)) {}
inline Dict::Dict(Budget& budget) : items(budget) {}
inline Namespace::Namespace(Budget& budget) : attributes(budget) {}
inline Loop::Loop(Vector<Value> all)
    : items(std::move(all)), last_changed(items.get_allocator().budget()) {}

/// A function, a method or a macro.
struct Callable {
  Value::Function call = nullptr;  ///< null: a macro
  Value object;
  const Statement* macro = nullptr;
  std::shared_ptr<Scope> scope;  ///< of the macro
  int depth = 1;                 ///< of the nesting of `object`
};

/// Bytes of the character at the front of a text that is not empty.
[[nodiscard]] std::size_t character_bytes(std::string_view text);
[[noreturn]] void fail_not_iterable(const Value& value);

template <class Visit>
void Value::each(Budget& budget, const Visit& visit) const {
  const Value held = *this;  // visit() may replace the variable that this is
  if (held.is<Undefined>()) return;
  if (held.list() != nullptr) {
    for (const Value& item : held.list()->items) visit(item);
  } else if (held.dict() != nullptr) {
    for (const auto& [key, value] : held.dict()->items) visit(key);
  } else if (const Text* text = held.text()) {
    for (std::size_t at = 0; at < text->size();) {
      budget.spend(1);
      const std::size_t n = character_bytes(text->view().substr(at));
      visit(Value(text->part(at, n)));
      at += n;
    }
  } else {
    fail_not_iterable(held);
  }
}

[[nodiscard]] bool equal(const Value& a, const Value& b, Budget& budget);
/// Less than zero, zero or more. Fails for what Python does not order.
[[nodiscard]] int compare(const Value& a, const Value& b, Budget& budget);
/// Whether `item` is in a container. Fails for what contains nothing.
[[nodiscard]] bool contains(const Value& container, const Value& item, Budget& budget);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  Text indent;  ///< of a level; used if `pretty`
  bool pretty = false;
  Text item_separator = Text::outside(", "), key_separator = Text::outside(": ");
};
/// Python's json.dumps.
[[nodiscard]] Text to_json(const Value& value, const JsonStyle& style, Budget& budget);
/// Python's repr of a float.
[[nodiscard]] std::string float_text(double value);

}  // namespace neap::chat
