#include "text/chat/interpreter.h"

#include <algorithm>

#include "base/format.h"

namespace neap::chat {
Interpreter::Interpreter(std::int64_t unix_time)
    : unix_time_(unix_time), globals_(scope_in(nullptr)) {
  define_functions();
}

Interpreter::~Interpreter() {
  for (const ScopePtr& scope : kept_scopes_) scope->variables.clear();
  for (const auto& space : namespaces_) space->attributes.items.clear();
  for (const auto& loop : changed_loops_) loop->last_changed.clear();
}

ScopePtr Interpreter::scope_in(const ScopePtr& around) {
  return std::allocate_shared<Scope>(Counted<Scope>(budget_), around, budget_);
}
void Interpreter::keep(const ScopePtr& scope) {
  if (kept_scopes_.empty() || kept_scopes_.back() != scope) kept_scopes_.push_back(scope);
}

Value Interpreter::make_namespace(const Arguments& arguments) {
  auto made = std::allocate_shared<Namespace>(Counted<Namespace>(budget_), budget_);
  for (const Value& from : arguments.list) {
    if (from.dict() == nullptr) fail("namespace() takes a dict and names");
    for (const auto& [key, value] : from.dict()->items) made->attributes.set(key, value);
  }
  for (const auto& [name, value] : arguments.named) made->attributes.set(name, value);
  namespaces_.push_back(made);
  return made;
}

bool Interpreter::changed(const std::shared_ptr<Loop>& loop, const Arguments& arguments) {
  const auto same = [&](const Value& a, const Value& b) { return equal(a, b, budget_); };
  if (!loop->changed_before) changed_loops_.push_back(loop);
  if (loop->changed_before &&
      std::equal(arguments.list.begin(), arguments.list.end(), loop->last_changed.begin(),
                 loop->last_changed.end(), same))
    return false;
  loop->last_changed = arguments.list;
  loop->changed_before = true;
  return true;
}

namespace {

Value dict_function(Interpreter& i, const Value&, const Arguments& a) {
  Dict made(i.budget());
  if (!a.list.empty() && a.list[0].dict() != nullptr) made = *a.list[0].dict();
  for (const auto& [name, value] : a.named) made.set(name, value);
  return made;
}
Value raise_function(Interpreter& i, const Value&, const Arguments& a) {
  const Value* message = a.find(0, "message");
  if (message == nullptr) fail("raise_exception without a message");
  fail(message->str(i.budget()).view());
}
Value strftime_function(Interpreter& i, const Value&, const Arguments& a) {
  const Value* layout = a.find(0, "format");
  if (layout == nullptr || layout->text() == nullptr) fail("strftime_now needs a format");
  return time_text(i.unix_time(), *layout->text(), i.budget());
}
Value range_function(Interpreter& i, const Value&, const Arguments& a) {
  std::int64_t bounds[3] = {0, 0, 1};
  if (a.list.empty() || a.list.size() > 3) fail("range takes one to three numbers");
  for (std::size_t k = 0; k < a.list.size(); ++k) {
    if (!a.list[k].defined().is_integer())
      fail(format("'{}' object cannot be interpreted as an integer", a.list[k].type()));
    bounds[a.list.size() == 1 ? 1 : k] = a.list[k].integer();
  }
  const auto [begin, end, step] = bounds;
  if (step == 0) fail("range() arg 3 must not be zero");
  List made(i.budget());
  for (std::int64_t at = begin; step > 0 ? at < end : at > end;) {
    if (made.items.size() == 100'000)
      fail("Range too big. The sandbox blocks ranges larger than 100000");
    made.items.emplace_back(at);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return made;
}

}  // namespace

void Interpreter::define_functions() {
  const auto function = [&](std::string_view name, Value::Function made) {
    define(name, Value::function(made, Value(), budget_));
  };
  function("namespace",
           [](Interpreter& i, const Value&, const Arguments& a) { return i.make_namespace(a); });
  function("dict", dict_function);
  function("raise_exception", raise_function);
  function("strftime_now", strftime_function);
  function("range", range_function);
}

void Interpreter::render(const Body& body) {
  run(body, scope_in(globals_));
}

void Interpreter::write(std::string_view text) {
  budget_.spend(1 + text.size() / 256);
  check_length(out_->size() + text.size());
  *out_ += text;
}

template <class Run>
Text Interpreter::captured(const Run& run) {
  String made(budget_);
  struct Restore {
    ~Restore() { interpreter.out_ = to; }
    Interpreter& interpreter;
    String* to;
  };
  {
    const Restore restore{*this, std::exchange(out_, &made)};
    run();
  }
  return made;
}
Text Interpreter::captured(const Body& body, const ScopePtr& around) {
  return captured([&] { run(body, scope_in(around)); });
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
  budget_.spend(1);
  switch (s.kind) {
    case Statement::kText:
      write(s.text);
      break;
    case Statement::kPrint:
      write(evaluate(*s.expression, scope).str(budget_));
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
      assign(*s.target, filtered(s.expression.get(), captured(s.body, scope), scope), scope);
      break;
    case Statement::kMacro:
      scope->set(Text::outside(s.text), macro(s, scope));
      break;
    case Statement::kCallBlock: {
      Arguments arguments = arguments_of(*s.expression, scope, 1);
      arguments.named.emplace_back(Text::outside("caller"), macro(s, scope));
      write(call(evaluate(*s.expression->parts[0], scope), arguments).str(budget_));
      break;
    }
    case Statement::kFilterBlock:
      write(filtered(s.expression.get(), captured(s.body, scope), scope).str(budget_));
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
  const ScopePtr inner = scope_in(scope);
  for (const auto& [target, expression] : s.assignments)
    assign(*target, evaluate(*expression, scope), inner);
  run(s.body, inner);
}

void Interpreter::run_generation(const Statement& s, const ScopePtr& scope) {
  const std::size_t begin = root_.size();
  const Text made = captured(s.body, scope);
  generated_.push_back({begin, begin + made.size()});
  write(made);
}

Vector<Value> Interpreter::kept_items(const Statement& s, const ScopePtr& scope,
                                      const Value& items) {
  if (!s.condition) return items.iterate(budget_);
  Vector<Value> kept(budget_);
  items.each(budget_, [&](const Value& one) {
    budget_.spend(1);
    const ScopePtr inner = scope_in(scope);
    assign(*s.target, one, inner);
    if (evaluate(*s.condition, inner).truth()) kept.push_back(one);
  });
  return kept;
}

void Interpreter::run_for(const Statement& s, const ScopePtr& scope, const Value& items,
                          int level) {
  Loop made(kept_items(s, scope, items));
  made.level = level;
  made.nesting = items.depth() + 1;
  if (s.recursive) {
    made.recursive = &s;
    made.scope = scope;
    keep(scope);
  }
  const Value held(std::move(made));
  const std::shared_ptr<Loop> loop = held.loop();
  for (loop->index = 0; loop->index < loop->items.size(); ++loop->index) {
    budget_.spend(1);
    const ScopePtr inner = scope_in(scope);
    assign(*s.target, loop->items[loop->index], inner);
    inner->set(Text::outside("loop"), held);
    if (run(s.body, inner) == Flow::kBreak) break;
  }
  if (loop->items.empty()) run(s.otherwise, scope_in(scope));
}

void Interpreter::assign(const Expression& target, Value value, const ScopePtr& scope) {
  if (target.kind == Expression::kName) {
    scope->set(Text::outside(target.text), std::move(value));
  } else if (target.kind == Expression::kAttribute) {
    const Value object = lookup(target.parts[0]->text, scope).defined();
    if (object.space() == nullptr) fail("cannot assign attribute on non-namespace object");
    object.space()->attributes.set(Text::outside(target.text), std::move(value));
  } else {
    const Vector<Value> parts = value.iterate(budget_);
    if (parts.size() != target.parts.size())
      fail(format("cannot unpack {} values into {} names", parts.size(), target.parts.size()));
    for (std::size_t k = 0; k < parts.size(); ++k) assign(*target.parts[k], parts[k], scope);
  }
}

Value Interpreter::macro(const Statement& s, const ScopePtr& scope) {
  keep(scope);
  return {Callable{nullptr, Value(), &s, scope}, budget_};
}

Value Interpreter::call_macro(const Callable& macro, const Arguments& arguments) {
  const Depth depth(*this);
  const Statement& s = *macro.macro;
  const std::string_view name = s.kind == Statement::kMacro ? std::string_view(s.text) : "caller";
  const ScopePtr inner = scope_in(macro.scope);
  if (arguments.list.size() > s.parameters.size())
    fail(format("macro '{}' takes not more than {} argument(s)", name, s.parameters.size()));
  for (std::size_t k = 0; k < s.parameters.size(); ++k) {
    const Parameter& p = s.parameters[k];
    const Value* given = arguments.find(k, p.name);
    inner->set(Text::outside(p.name),
               given != nullptr ? *given
               : p.otherwise
                   ? evaluate(*p.otherwise, inner)
                   : Value::undefined(format("parameter '{}' was not provided", p.name), budget_));
  }
  for (const auto& [key, value] : arguments.named) {
    budget_.spend(s.parameters.size() / 8);
    const auto is_key = [&, &key = key](const Parameter& p) { return p.name == key.view(); };
    if (key.view() == "caller") {
      inner->set(key, value);
    } else if (!std::any_of(s.parameters.begin(), s.parameters.end(), is_key)) {
      fail(format("macro '{}' takes no keyword argument '{}'", name, key.view()));
    }
  }
  return captured([&] { run(s.body, inner); });
}

Value Interpreter::call(const Value& function, const Arguments& arguments) {
  function.defined();
  budget_.spend(1);
  if (const auto loop = function.loop();
      loop && loop->recursive != nullptr && arguments.list.size() == 1) {
    const Depth depth(*this);
    return captured(
        [&] { run_for(*loop->recursive, loop->scope, arguments.list[0], loop->level + 1); });
  }
  // The call may replace the variable that holds this function.
  const Value held = function;  // NOLINT(performance-unnecessary-copy-initialization)
  const Callable* callable = held.callable();
  if (callable == nullptr) fail(format("'{}' object is not callable", function.type()));
  return callable->macro != nullptr ? call_macro(*callable, arguments)
                                    : callable->call(*this, callable->object, arguments);
}

Value Interpreter::filter(std::string_view name, const Value& input, const Arguments& arguments) {
  const Filter found = find_filter(name);
  if (found == nullptr) fail(format("No filter named '{}'", name));
  budget_.spend(1);
  return found(*this, input, arguments);
}

bool Interpreter::test(std::string_view name, const Value& input, const Arguments& arguments) {
  const Test found = find_test(name);
  if (found == nullptr) fail(format("No test named '{}'", name));
  budget_.spend(1);
  return found(*this, input, arguments);
}

}  // namespace neap::chat
