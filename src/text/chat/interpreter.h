// Runs a parsed template. One thread per rendering.
#pragma once

#include <map>
#include <memory>
#include <string_view>

#include "text/chat/ast.h"

namespace neap::chat {

/// Variables of a block. Missing ones are looked up in the surrounding block.
struct Scope {
  Scope(std::shared_ptr<Scope> around, Budget& budget)
      : variables(budget), parent(std::move(around)) {}
  void set(const Text& name, Value value) { variables.insert_or_assign(name, std::move(value)); }
  std::map<Text, Value, std::less<>, Counted<std::pair<const Text, Value>>> variables;
  std::shared_ptr<Scope> parent;
};
using ScopePtr = std::shared_ptr<Scope>;

class Interpreter {
 public:
  struct Range {
    std::size_t begin, end;
  };
  explicit Interpreter(std::int64_t unix_time);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  /// `name` outlives the rendering.
  void define(std::string_view name, Value value) {
    globals_->set(Text::outside(name), std::move(value));
  }
  /// Renders the template, which outlives the rendering; throws TemplateError with the line.
  void render(const Body& body);
  [[nodiscard]] std::string_view text() const { return root_; }
  [[nodiscard]] const Vector<Range>& generated() const { return generated_; }

  // Used by filters, tests and methods:
  [[nodiscard]] Budget& budget() { return budget_; }
  Value call(const Value& function, const Arguments& arguments);
  Value filter(std::string_view name, const Value& input, const Arguments& arguments);
  bool test(std::string_view name, const Value& input, const Arguments& arguments);
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& index);
  Value make_namespace(const Arguments& arguments);
  /// Implements loop.changed(...).
  bool changed(const std::shared_ptr<Loop>& loop, const Arguments& arguments);
  [[nodiscard]] std::int64_t unix_time() const { return unix_time_; }

 private:
  enum class Flow { kOn, kBreak, kContinue };
  /// A level of nesting during its lifetime.
  class Depth {
   public:
    explicit Depth(Interpreter& of) : depth_(of.depth_) {
      check_levels(depth_ + 1, "a call or a block");
      ++depth_;
    }
    ~Depth() { --depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    int& depth_;
  };

  void define_functions();
  Flow run(const Body& body, const ScopePtr& scope);
  Flow run(const Statement& statement, const ScopePtr& scope);
  Flow run_if(const Statement& statement, const ScopePtr& scope);
  void run_for(const Statement& statement, const ScopePtr& scope, const Value& items, int level);
  Vector<Value> kept_items(const Statement& statement, const ScopePtr& scope, const Value& items);
  void run_generation(const Statement& statement, const ScopePtr& scope);
  void run_with(const Statement& statement, const ScopePtr& scope);
  Value macro(const Statement& statement, const ScopePtr& scope);
  Value call_macro(const Callable& macro, const Arguments& arguments);
  [[nodiscard]] ScopePtr scope_in(const ScopePtr& around);
  /// Registers a scope that a value holds. Such scopes are emptied at the end.
  void keep(const ScopePtr& scope);
  /// Returns the text that `run` writes.
  template <class Run>
  Text captured(const Run& run);
  /// Returns the text that `body` writes, in a new scope.
  Text captured(const Body& body, const ScopePtr& around);
  void write(std::string_view text);
  void assign(const Expression& target, Value value, const ScopePtr& scope);

  Value evaluate(const Expression& e, const ScopePtr& scope);
  Value evaluate_kind(const Expression& e, const ScopePtr& scope);
  Value lookup(std::string_view name, const ScopePtr& scope);
  Value binary(const Expression& e, const ScopePtr& scope);
  Value compare_chain(const Expression& e, const ScopePtr& scope);
  Value unary(const Expression& e, const ScopePtr& scope);
  Value slice(const Value& object, const Expression& bounds, const ScopePtr& scope);
  Value collection(const Expression& e, const ScopePtr& scope);
  Arguments arguments_of(const Expression& e, const ScopePtr& scope, std::size_t from);
  Value filtered(const Expression* e, Value input, const ScopePtr& scope);

  Budget budget_{kLimits, 0, fail_rendering};  // first member: destroyed after the others
  std::int64_t unix_time_;
  int depth_ = 0;
  ScopePtr globals_;
  String root_{budget_};  // output of the template
  String* out_ = &root_;  // current output
  Vector<Range> generated_{budget_};
  // These objects may form reference cycles through macros, attributes and arguments, so they are
  // emptied at the end.
  Vector<ScopePtr> kept_scopes_{budget_};
  Vector<std::shared_ptr<Namespace>> namespaces_{budget_};
  Vector<std::shared_ptr<Loop>> changed_loops_{budget_};
};

/// A filter or test by its name in Jinja2; nullptr if unknown.
using Filter = Value (*)(Interpreter&, const Value& input, const Arguments&);
using Test = bool (*)(Interpreter&, const Value& input, const Arguments&);
[[nodiscard]] Filter find_filter(std::string_view name);
[[nodiscard]] Test find_test(std::string_view name);
/// A method of a text, list or dict; None if unknown.
[[nodiscard]] Value find_method(const Value& object, std::string_view name, Budget& budget);
/// The pairs of a dict, as returned by its method items().
[[nodiscard]] List items_of(const Dict& dict, Budget& budget);
/// Implements Python's binary operators.
[[nodiscard]] Value operate(std::string_view op, const Value& left, const Value& right,
                            Budget& budget);
/// Implements strftime in the C locale.
[[nodiscard]] Text time_text(std::int64_t unix_time, std::string_view layout, Budget& budget);

}  // namespace neap::chat
