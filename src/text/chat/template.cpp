#include "text/chat/template.h"

#include <chrono>

#include "base/format.h"
#include "text/chat/interpreter.h"

namespace neap::chat {

struct Template::Parsed {
  Body body;
  std::string where;
};

namespace {

// Returns the result of `run`, or the reason why it failed.
template <class T, class Run>
Result<T> guarded(const std::string& where, const Run& run) {
  try {
    return run();
  } catch (const TemplateError& e) {
    const std::string line = e.line > 0 ? format(" line {}", e.line) : "";
    return Status(ErrorCode::kInvalidArgument, format("{}{}: {}", where, line, e.what()));
  } catch (const std::bad_alloc&) {
    return Status(ErrorCode::kOutOfHostMemory, format("{}: the host has no memory left", where));
  }
}

// Prepares messages as transformers does. The model's reasoning is available under two names.
Value messages_of(const Json& messages, Budget& budget) {
  List made(budget);
  for (const Json& message : messages) {
    const Json* thought = nullptr;
    for (const char* name : {"reasoning", "thinking", "reasoning_content"}) {
      if (const auto it = message.find(name); it != message.end() && !it->is_null()) thought = &*it;
    }
    Dict plain(budget);
    const Value value = thought != nullptr ? Value::of_json(*thought, budget) : Value();
    if (thought != nullptr) plain.set("thinking", value);
    for (auto it = message.begin(); it != message.end(); ++it)
      plain.set(Text::outside(it.key()), Value::of_json(*it, budget));
    if (thought != nullptr) plain.set("reasoning_content", value);
    made.items.emplace_back(std::move(plain));
  }
  return made;
}

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Result<Template> Template::parse(std::string_view source, std::string_view where) {
  if (Bytes(source.size()) > read_limits::kTemplate.file)
    return over_limit(where, read_limits::kTemplate, Excess::kFile);
  const std::string name(where);
  return guarded<Template>(name, [&] {
    auto parsed = std::make_shared<Parsed>();
    parsed->where = name;
    parsed->body = chat::parse(source);
    Template made;
    made.parsed_ = std::move(parsed);
    return made;
  });
}

Result<Rendered> Template::render(const Json& messages, const RenderOptions& options) const {
  if (!messages.is_array())
    return Status(ErrorCode::kInvalidArgument, "The messages of a conversation are not a list");
  for (const Json& message : messages) {
    if (!message.is_object())
      return Status(ErrorCode::kInvalidArgument, "A message of a conversation is not an object");
  }
  return guarded<Rendered>(parsed_->where, [&] {
    Interpreter interpreter(options.unix_time.value_or(now()));
    Budget& budget = interpreter.budget();
    interpreter.define("messages", messages_of(messages, budget));
    interpreter.define("tools", Value::of_json(options.tools, budget));
    interpreter.define("documents", Value::of_json(options.documents, budget));
    interpreter.define("add_generation_prompt", options.add_generation_prompt);
    for (auto it = options.variables.begin(); it != options.variables.end(); ++it)
      interpreter.define(it.key(), Value::of_json(*it, budget));
    interpreter.render(parsed_->body);
    Rendered made;
    for (const auto& range : interpreter.generated())
      made.generated.push_back({range.begin, range.end});
    made.text = interpreter.text();
    return made;
  });
}

}  // namespace neap::chat
