// Values of chat templates: the types of Jinja2, with Python's text, equality and order.
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

class Interpreter;
class Value;
struct Statement;
struct Scope;
struct Callable;

struct Arguments {
  explicit Arguments(Budget& budget);
  Vector<Value> list;
  Vector<std::pair<Text, Value>> named;
  /// The argument at `position` or with name `name`; nullptr if missing.
  [[nodiscard]] const Value* find(std::size_t position, std::string_view name) const;
};

struct Undefined {
  Text why;  ///< message for uses of the undefined value
};
struct None {};
struct List {
  explicit List(Budget& budget);
  explicit List(Vector<Value> made);
  Vector<Value> items;
  bool tuple = false;
  int depth = 1;  ///< nesting depth; bounded, because values are read and freed recursively
};
struct Dict {
  explicit Dict(Budget& budget);
  Vector<std::pair<Value, Value>> items;
  int depth = 1;
  [[nodiscard]] const Value* find(const Value& key, Budget& budget) const;
  [[nodiscard]] const Value* find_text(std::string_view key, Budget& budget) const;
  void set(const Value& key, Value value);
};
/// The result of namespace(): an object with attributes that a template can set.
struct Namespace {
  explicit Namespace(Budget& budget);
  Dict attributes;
};
/// The variable `loop`.
struct Loop {
  explicit Loop(Vector<Value> all);
  Vector<Value> items;
  std::size_t index = 0;
  int level = 0;    ///< depth of recursive loops
  int nesting = 1;  ///< nesting depth of its values
  Vector<Value> last_changed;
  bool changed_before = false;
  const Statement* recursive = nullptr;  ///< set in a recursive loop
  std::shared_ptr<Scope> scope;          ///< scope around a recursive loop
};

class Value {
 public:
  /// Signature of functions and methods. `object` owns the method.
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
  Value(const void*) = delete;                               // pointers would convert to bool
  Value(List l);                                             // NOLINT
  Value(Dict d);                                             // NOLINT
  Value(std::shared_ptr<Namespace> n) : v_(std::move(n)) {}  // NOLINT
  Value(Callable c, Budget& budget);
  explicit Value(Loop l);
  /// Shares the texts of `json`, which outlives the rendering.
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
  /// Whether the value is a bool, int or float.
  [[nodiscard]] bool is_number() const { return is<bool>() || is<std::int64_t>() || is<double>(); }
  [[nodiscard]] bool is_integer() const { return is<bool>() || is<std::int64_t>(); }
  [[nodiscard]] std::int64_t integer() const;  ///< requires is_integer()
  [[nodiscard]] double number() const;         ///< requires is_number()

  [[nodiscard]] bool truth() const;
  [[nodiscard]] Text str(Budget& budget) const;   ///< Python's str()
  [[nodiscard]] Text repr(Budget& budget) const;  ///< Python's repr()
  [[nodiscard]] const char* type() const;         ///< Python's name of the type
  /// Fails with the reason if this is undefined.
  const Value& defined() const;
  /// The items, characters or keys that iteration yields. Fails for a value that is not iterable.
  [[nodiscard]] Vector<Value> iterate(Budget& budget) const;
  /// As iterate(), but calls `visit` with each of them in order.
  template <class Visit>
  void each(Budget& budget, const Visit& visit) const;

 private:
  std::variant<Undefined, None, bool, std::int64_t, double, Text, ListPtr, DictPtr,
               std::shared_ptr<Namespace>, std::shared_ptr<const Callable>, std::shared_ptr<Loop>>
      v_;
};

// Defined here, because Value must be complete.
inline Arguments::Arguments(Budget& budget) : list(budget), named(budget) {}
inline List::List(Budget& budget) : items(budget) {}
inline List::List(Vector<Value> made) : items(std::move(made)) {}
inline Dict::Dict(Budget& budget) : items(budget) {}
inline Namespace::Namespace(Budget& budget) : attributes(budget) {}
inline Loop::Loop(Vector<Value> all)
    : items(std::move(all)), last_changed(items.get_allocator().budget()) {}

/// A function, method or macro.
struct Callable {
  Value::Function call = nullptr;  ///< null: a macro
  Value object;
  const Statement* macro = nullptr;
  std::shared_ptr<Scope> scope;  ///< scope of the macro
  int depth = 1;                 ///< nesting depth of `object`
};

/// Bytes of the first character of a non-empty text.
[[nodiscard]] std::size_t character_bytes(std::string_view text);
[[noreturn]] void fail_not_iterable(const Value& value);

template <class Visit>
void Value::each(Budget& budget, const Visit& visit) const {
  const Value held = *this;  // visit() may replace the variable that holds this value
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
/// Returns a number less than, equal to or greater than zero. Fails for values that Python does not
/// order.
[[nodiscard]] int compare(const Value& a, const Value& b, Budget& budget);
/// Whether a container contains `item`. Fails for a value that is not a container.
[[nodiscard]] bool contains(const Value& container, const Value& item, Budget& budget);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  Text indent;  ///< indentation per level; used if `pretty`
  bool pretty = false;
  Text item_separator = Text::outside(", "), key_separator = Text::outside(": ");
};
/// Implements Python's json.dumps.
[[nodiscard]] Text to_json(const Value& value, const JsonStyle& style, Budget& budget);
/// Implements Python's repr of a float.
[[nodiscard]] std::string float_text(double value);

}  // namespace neap::chat
