#include "chat/interpreter.h"

#include <algorithm>

#include "base/format.h"
#include "model/utf8.h"

namespace neap::chat {
namespace {
constexpr int kMaxDepth = 600;
constexpr std::int64_t kMaxSteps = 20'000'000;
}  // namespace

struct Interpreter::Depth {
  explicit Depth(Interpreter& i) : interpreter(i) {
    if (++interpreter.depth_ <= kMaxDepth) return;
    --interpreter.depth_;
    fail("calls and blocks nest too deep");
  }
  ~Depth() { --interpreter.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;
  Interpreter& interpreter;
};

Interpreter::Interpreter(std::int64_t unix_time)
    : unix_time_(unix_time), globals_(std::make_shared<Scope>(nullptr)) {
  define_functions();
}

Interpreter::~Interpreter() {
  for (const ScopePtr& scope : scopes_of_macros_) scope->variables.clear();
  for (const auto& space : namespaces_) space->attributes.items.clear();
}

Value Interpreter::make_namespace(const Arguments& arguments) {
  auto made = std::make_shared<Namespace>();
  for (const Value& from : arguments.list) {
    if (from.dict() == nullptr) fail("namespace() takes a dict and names");
    for (const auto& [key, value] : from.dict()->items) made->attributes.set(key, value);
  }
  for (const auto& [name, value] : arguments.named) made->attributes.set(name, value);
  namespaces_.push_back(made);
  return made;
}

void Interpreter::define_functions() {
  define("namespace", Value::function("namespace", [](Interpreter& i, const Arguments& a) {
           return i.make_namespace(a);
         }));
  define("dict", Value::function("dict", [](Interpreter&, const Arguments& a) {
           Dict made;
           if (!a.list.empty() && a.list[0].dict() != nullptr) made = *a.list[0].dict();
           for (const auto& [name, value] : a.named) made.set(name, value);
           return Value(std::move(made));
         }));
  define("raise_exception",
         Value::function("raise_exception", [](Interpreter&, const Arguments& a) -> Value {
           const Value* message = a.find(0, "message");
           fail(message == nullptr ? "raise_exception without a message" : message->str());
         }));
  define("strftime_now", Value::function("strftime_now", [](Interpreter& i, const Arguments& a) {
           const Value* layout = a.find(0, "format");
           if (layout == nullptr || layout->text() == nullptr) fail("strftime_now needs a format");
           return Value(time_text(i.unix_time(), *layout->text()));
         }));
  define("range", Value::function("range", [](Interpreter&, const Arguments& a) {
           std::int64_t bounds[3] = {0, 0, 1};
           if (a.list.empty() || a.list.size() > 3) fail("range takes one to three numbers");
           for (std::size_t k = 0; k < a.list.size(); ++k) {
             if (!a.list[k].defined().is_integer())
               fail(format("'{}' object cannot be interpreted as an integer", a.list[k].type()));
             bounds[a.list.size() == 1 ? 1 : k] = a.list[k].integer();
           }
           const auto [begin, end, step] = bounds;
           if (step == 0) fail("range() arg 3 must not be zero");
           List made;
           for (std::int64_t at = begin; step > 0 ? at < end : at > end;) {
             if (made.items.size() == 100'000)
               fail("Range too big. The sandbox blocks ranges larger than 100000");
             made.items.emplace_back(at);
             if (__builtin_add_overflow(at, step, &at)) break;
           }
           return Value(std::move(made));
         }));
}

void Interpreter::render(const Body& body) {
  set_budget(kMaxSteps);
  run(body, std::make_shared<Scope>(globals_));
}

void Interpreter::write(std::string_view text) {
  spend(1 + text.size() / 64);
  if (out_->size() + text.size() > kMaxText) fail("the rendered text is too long");
  *out_ += text;
}

std::string Interpreter::captured(const Body& body, const ScopePtr& scope) {
  std::string made;
  std::string* const before = std::exchange(out_, &made);
  struct Restore {
    ~Restore() { interpreter.out_ = to; }
    Interpreter& interpreter;
    std::string* to;
  } const restore{*this, before};
  run(body, scope);
  return made;
}

Interpreter::Flow Interpreter::run(const Body& body, const ScopePtr& scope) {
  for (const Statement& statement : body) {
    try {
      const Flow flow = run(statement, scope);
      if (flow != Flow::kOn) return flow;
    } catch (TemplateError& e) {
      if (e.line == 0) e.line = statement.line;
      throw;
    }
  }
  return Flow::kOn;
}

Interpreter::Flow Interpreter::run(const Statement& s, const ScopePtr& scope) {
  const Depth depth(*this);
  spend(1);
  switch (s.kind) {
    case Statement::kText:
      write(s.text);
      break;
    case Statement::kPrint:
      write(evaluate(*s.expression, scope).str());
      break;
    case Statement::kIf:
      return run_if(s, scope);
    case Statement::kFor:
      run_for(s, scope, evaluate(*s.expression, scope), 0);
      break;
    case Statement::kSet:
      assign(*s.target, evaluate(*s.expression, scope), scope);
      break;
    case Statement::kSetBlock:
      assign(*s.target,
             filtered(s.expression.get(), captured(s.body, std::make_shared<Scope>(scope)), scope),
             scope);
      break;
    case Statement::kMacro:
      scope->variables[s.text] = macro(s, s.text, scope);
      break;
    case Statement::kCallBlock: {
      Arguments arguments = arguments_of(*s.expression, scope, 1);
      arguments.named.emplace_back("caller", macro(s, "caller", scope));
      write(call(evaluate(*s.expression->parts[0], scope), arguments).str());
      break;
    }
    case Statement::kFilterBlock:
      write(filtered(s.expression.get(), captured(s.body, std::make_shared<Scope>(scope)), scope)
                .str());
      break;
    case Statement::kWith:
      run_with(s, scope);
      break;
    case Statement::kGeneration:
      run_generation(s, scope);
      break;
    case Statement::kBreak:
      return Flow::kBreak;
    case Statement::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

Interpreter::Flow Interpreter::run_if(const Statement& s, const ScopePtr& scope) {
  return run(evaluate(*s.expression, scope).truth() ? s.body : s.otherwise, scope);
}

void Interpreter::run_with(const Statement& s, const ScopePtr& scope) {
  const auto inner = std::make_shared<Scope>(scope);
  for (const auto& [target, expression] : s.assignments)
    assign(*target, evaluate(*expression, scope), inner);
  run(s.body, inner);
}

void Interpreter::run_generation(const Statement& s, const ScopePtr& scope) {
  const std::size_t begin = root_.size();
  const std::string made = captured(s.body, std::make_shared<Scope>(scope));
  generated_.push_back({begin, begin + made.size()});
  write(made);
}

std::vector<Value> Interpreter::kept_items(const Statement& s, const ScopePtr& scope,
                                           const Value& items) {
  std::vector<Value> all = items.iterate();
  if (!s.condition) return all;
  std::vector<Value> kept;
  for (const Value& one : all) {
    spend(1);
    const auto inner = std::make_shared<Scope>(scope);
    assign(*s.target, one, inner);
    if (evaluate(*s.condition, inner).truth()) kept.push_back(one);
  }
  return kept;
}

void Interpreter::run_for(const Statement& s, const ScopePtr& scope, const Value& items,
                          int level) {
  const auto loop = std::make_shared<Loop>();
  loop->items = kept_items(s, scope, items);
  loop->depth = level;
  if (s.recursive) {
    loop->recurse = [this, &s, scope, level](Interpreter&, const Value& inner) {
      const Depth depth(*this);
      std::string made;
      std::string* const before = std::exchange(out_, &made);
      try {
        run_for(s, scope, inner, level + 1);
      } catch (...) {
        out_ = before;
        throw;
      }
      out_ = before;
      return Value(std::move(made));
    };
  }
  for (loop->index = 0; loop->index < loop->items.size(); ++loop->index) {
    spend(1);
    const auto inner = std::make_shared<Scope>(scope);
    assign(*s.target, loop->items[loop->index], inner);
    inner->variables["loop"] = loop;
    if (run(s.body, inner) == Flow::kBreak) break;
  }
  if (loop->items.empty()) run(s.otherwise, std::make_shared<Scope>(scope));
}

void Interpreter::assign(const Expression& target, Value value, const ScopePtr& scope) {
  if (target.kind == Expression::kName) {
    scope->variables[target.text] = std::move(value);
  } else if (target.kind == Expression::kAttribute) {
    const Value object = lookup(target.parts[0]->text, scope).defined();
    if (object.space() == nullptr) fail("cannot assign attribute on non-namespace object");
    object.space()->attributes.set(target.text, std::move(value));
  } else {
    const std::vector<Value> parts = value.iterate();
    if (parts.size() != target.parts.size())
      fail(format("cannot unpack {} values into {} names", parts.size(), target.parts.size()));
    for (std::size_t k = 0; k < parts.size(); ++k) assign(*target.parts[k], parts[k], scope);
  }
}

Value Interpreter::macro(const Statement& s, const std::string& name, const ScopePtr& scope) {
  if (scopes_of_macros_.empty() || scopes_of_macros_.back() != scope)
    scopes_of_macros_.push_back(scope);
  return Value::function(name, [this, &s, name, scope](Interpreter&, const Arguments& arguments) {
    return call_macro(s, name, scope, arguments);
  });
}

Value Interpreter::call_macro(const Statement& s, const std::string& name, const ScopePtr& scope,
                              const Arguments& arguments) {
  const Depth depth(*this);
  const auto inner = std::make_shared<Scope>(scope);
  if (arguments.list.size() > s.parameters.size())
    fail(format("macro '{}' takes not more than {} argument(s)", name, s.parameters.size()));
  for (std::size_t k = 0; k < s.parameters.size(); ++k) {
    const Parameter& p = s.parameters[k];
    const Value* given = arguments.find(k, p.name);
    inner->variables[p.name] =
        given != nullptr ? *given
        : p.otherwise    ? evaluate(*p.otherwise, inner)
                         : Value::undefined(format("parameter '{}' was not provided", p.name));
  }
  for (const auto& argument : arguments.named) {
    const std::string& key = argument.first;
    const bool known = std::any_of(s.parameters.begin(), s.parameters.end(),
                                   [&](const Parameter& p) { return p.name == key; });
    if (key == "caller") {
      inner->variables[key] = argument.second;
    } else if (!known) {
      fail(format("macro '{}' takes no keyword argument '{}'", name, key));
    }
  }
  return captured(s.body, inner);
}

Value Interpreter::call(const Value& function, const Arguments& arguments) {
  function.defined();
  spend(1);
  if (const auto loop = function.loop(); loop && loop->recurse && arguments.list.size() == 1)
    return loop->recurse(*this, arguments.list[0]);
  if (function.callable() == nullptr) fail(format("'{}' object is not callable", function.type()));
  return function.callable()->call(*this, arguments);
}

Value Interpreter::filter(const std::string& name, const Value& input, const Arguments& arguments) {
  const Filter found = find_filter(name);
  if (found == nullptr) fail(format("No filter named '{}'", name));
  spend(1);
  return found(*this, input, arguments);
}

bool Interpreter::test(const std::string& name, const Value& input, const Arguments& arguments) {
  const Test found = find_test(name);
  if (found == nullptr) fail(format("No test named '{}'", name));
  spend(1);
  return found(*this, input, arguments);
}

}  // namespace neap::chat
