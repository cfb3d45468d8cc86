// Values of chat templates: what Jinja2 has, with Python's text, equality and order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"

namespace neap::chat {

/// What ends a rendering; the interpreter adds the line. Never leaves the module.
class TemplateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  int line = 0;  ///< 0: not known yet
};
[[noreturn]] void fail(const std::string& what);
/// Work that a rendering may still do, in steps of this thread. `spend` fails when it is used up.
void set_budget(std::int64_t steps);
void spend(std::size_t steps);
/// Texts longer than this fail.
inline constexpr std::size_t kMaxText = std::size_t{64} << 20;
inline constexpr int kMaxValueDepth = 600;

class Value;
class Interpreter;
struct Arguments {
  std::vector<Value> list;
  std::vector<std::pair<std::string, Value>> named;
  /// The argument at `position` or called `name`, or nullptr.
  [[nodiscard]] const Value* find(std::size_t position, std::string_view name) const;
};

struct Undefined {
  std::string why;  ///< the message of using it
};
struct None {};
struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;  ///< of the nesting; bounded, because values are read and freed by recursion
};
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;
  [[nodiscard]] const Value* find(const Value& key) const;
  [[nodiscard]] const Value* find_text(std::string_view key) const;
  void set(const Value& key, Value value);
};
/// An object with attributes that a template can set: namespace().
struct Namespace {
  Dict attributes;
};
/// A function, a method or a macro.
struct Callable {
  std::string name;
  std::function<Value(Interpreter&, const Arguments&)> call;
  int depth = 1;  ///< of the object whose method it is
};
/// The variable `loop`.
struct Loop {
  std::vector<Value> items;
  std::size_t index = 0;
  int depth = 0;
  std::vector<Value> last_changed;
  bool changed_before = false;
  std::function<Value(Interpreter&, const Value&)> recurse;  ///< of a recursive loop
};

class Value {
 public:
  using ListPtr = std::shared_ptr<const List>;
  using DictPtr = std::shared_ptr<const Dict>;
  Value() : v_(None{}) {}
  Value(Undefined u) : v_(std::move(u)) {}                        // NOLINT
  Value(bool b) : v_(b) {}                                        // NOLINT
  Value(std::int64_t i) : v_(i) {}                                // NOLINT
  Value(double d) : v_(d) {}                                      // NOLINT
  Value(std::string s) : v_(std::move(s)) {}                      // NOLINT
  Value(const char* s) : v_(std::string(s)) {}                    // NOLINT
  Value(List l);                                                  // NOLINT
  Value(Dict d);                                                  // NOLINT
  Value(std::shared_ptr<Namespace> n) : v_(std::move(n)) {}       // NOLINT
  Value(std::shared_ptr<const Callable> c) : v_(std::move(c)) {}  // NOLINT
  Value(std::shared_ptr<Loop> l) : v_(std::move(l)) {}            // NOLINT
  static Value of_json(const Json& json);
  static Value undefined(std::string why) { return Undefined{std::move(why)}; }
  static Value function(std::string name, std::function<Value(Interpreter&, const Arguments&)> call,
                        int depth = 1) {
    return std::make_shared<const Callable>(Callable{std::move(name), std::move(call), depth});
  }
  [[nodiscard]] int depth() const;

  template <class T>
  [[nodiscard]] bool is() const {
    return std::holds_alternative<T>(v_);
  }
  template <class T>
  [[nodiscard]] const T* get() const {
    return std::get_if<T>(&v_);
  }
  [[nodiscard]] const std::string* text() const { return std::get_if<std::string>(&v_); }
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
  [[nodiscard]] std::string str() const;   ///< Python's str()
  [[nodiscard]] std::string repr() const;  ///< Python's repr()
  [[nodiscard]] const char* type() const;  ///< Python's name of the type
  /// Fails with the reason if this is undefined.
  const Value& defined() const;
  /// What iterating gives: items, characters, keys. Fails for what is not iterable.
  [[nodiscard]] std::vector<Value> iterate() const;

 private:
  std::variant<Undefined, None, bool, std::int64_t, double, std::string, ListPtr, DictPtr,
               std::shared_ptr<Namespace>, std::shared_ptr<const Callable>, std::shared_ptr<Loop>>
      v_;
};

[[nodiscard]] bool equal(const Value& a, const Value& b);
/// Less than zero, zero or more. Fails for what Python does not order.
[[nodiscard]] int compare(const Value& a, const Value& b);
/// Whether `item` is in a container. Fails for what contains nothing.
[[nodiscard]] bool contains(const Value& container, const Value& item);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::string indent;  ///< of a level; used if `pretty`
  bool pretty = false;
  std::string item_separator = ", ", key_separator = ": ";
};
/// Python's json.dumps.
[[nodiscard]] std::string to_json(const Value& value, const JsonStyle& style);
/// Python's repr of a float.
[[nodiscard]] std::string float_text(double value);

}  // namespace neap::chat
