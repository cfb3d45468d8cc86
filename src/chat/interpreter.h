// Runs a parsed template. One thread; one rendering.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "chat/ast.h"

namespace neap::chat {

/// Variables of a block; what it lacks is in the block around it.
struct Scope {
  explicit Scope(std::shared_ptr<Scope> around) : parent(std::move(around)) {}
  std::map<std::string, Value, std::less<>> variables;
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

  void define(const std::string& name, Value value) {
    globals_->variables[name] = std::move(value);
  }
  /// Renders the template; throws TemplateError with the line.
  void render(const Body& body);
  [[nodiscard]] std::string& text() { return root_; }
  [[nodiscard]] const std::vector<Range>& generated() const { return generated_; }

  // For filters, tests and methods.
  Value call(const Value& function, const Arguments& arguments);
  Value filter(const std::string& name, const Value& input, const Arguments& arguments);
  bool test(const std::string& name, const Value& input, const Arguments& arguments);
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& index);
  Value make_namespace(const Arguments& arguments);
  [[nodiscard]] std::int64_t unix_time() const { return unix_time_; }

 private:
  enum class Flow { kOn, kBreak, kContinue };
  struct Depth;

  void define_functions();
  Flow run(const Body& body, const ScopePtr& scope);
  Flow run(const Statement& statement, const ScopePtr& scope);
  Flow run_if(const Statement& statement, const ScopePtr& scope);
  void run_for(const Statement& statement, const ScopePtr& scope, const Value& items, int depth);
  std::vector<Value> kept_items(const Statement& statement, const ScopePtr& scope,
                                const Value& items);
  void run_generation(const Statement& statement, const ScopePtr& scope);
  void run_with(const Statement& statement, const ScopePtr& scope);
  Value macro(const Statement& statement, const std::string& name, const ScopePtr& scope);
  Value call_macro(const Statement& statement, const std::string& name, const ScopePtr& scope,
                   const Arguments& arguments);
  /// What `body` writes.
  std::string captured(const Body& body, const ScopePtr& scope);
  void write(std::string_view text);
  void assign(const Expression& target, Value value, const ScopePtr& scope);

  Value evaluate(const Expression& e, const ScopePtr& scope);
  Value evaluate_kind(const Expression& e, const ScopePtr& scope);
  Value lookup(const std::string& name, const ScopePtr& scope) const;
  Value binary(const Expression& e, const ScopePtr& scope);
  Value compare_chain(const Expression& e, const ScopePtr& scope);
  Value unary(const Expression& e, const ScopePtr& scope);
  Value slice(const Value& object, const Expression& bounds, const ScopePtr& scope);
  Value collection(const Expression& e, const ScopePtr& scope);
  Arguments arguments_of(const Expression& e, const ScopePtr& scope, std::size_t from);
  Value filtered(const Expression* e, Value input, const ScopePtr& scope);

  std::int64_t unix_time_;
  int depth_ = 0;
  ScopePtr globals_;
  std::string root_;           // what the template has written
  std::string* out_ = &root_;  // where writing goes now
  std::vector<Range> generated_;
  // Scopes and namespaces may hold themselves through macros and attributes: they are emptied at the end.
  std::vector<ScopePtr> scopes_of_macros_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

/// A filter or test by its name in Jinja2; nullptr: there is none.
using Filter = Value (*)(Interpreter&, const Value& input, const Arguments&);
using Test = bool (*)(Interpreter&, const Value& input, const Arguments&);
[[nodiscard]] Filter find_filter(std::string_view name);
[[nodiscard]] Test find_test(std::string_view name);
/// A method of a text, list or dict; undefined: there is none.
[[nodiscard]] Value find_method(const Value& object, const std::string& name);
/// Python's operators.
[[nodiscard]] Value operate(const std::string& op, const Value& left, const Value& right);
/// strftime in the C locale.
[[nodiscard]] std::string time_text(std::int64_t unix_time, const std::string& layout);

}  // namespace neap::chat
