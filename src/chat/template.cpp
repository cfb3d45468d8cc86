#include "chat/template.h"

#include <chrono>

#include "base/format.h"
#include "chat/interpreter.h"

namespace neap::chat {

struct Template::Parsed {
  Body body;
  std::string where;
};

namespace {

Status failure(const std::string& where, const TemplateError& e) {
  return {ErrorCode::kInvalidArgument, format("{} line {}: {}", where, e.line, e.what())};
}

// As transformers gives messages to a template: what a model thought is there by two of its names.
Value messages_of(const Json& messages) {
  List made;
  for (const Json& message : messages) {
    const Json* thought = nullptr;
    for (const char* name : {"reasoning", "thinking", "reasoning_content"}) {
      if (const auto it = message.find(name); it != message.end() && !it->is_null()) thought = &*it;
    }
    Json plain = Json::object();
    if (thought != nullptr) plain["thinking"] = *thought;
    plain.update(message);
    if (thought != nullptr) plain["reasoning_content"] = *thought;
    made.items.push_back(Value::of_json(plain));
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
  const std::string name(where);
  try {
    auto parsed = std::make_shared<Parsed>();
    parsed->where = name;
    parsed->body = chat::parse(source);
    Template made;
    made.parsed_ = std::move(parsed);
    return made;
  } catch (const TemplateError& e) {
    return failure(name, e);
  }
}

Result<Rendered> Template::render(const Json& messages, const RenderOptions& options) const {
  if (!messages.is_array())
    return Status(ErrorCode::kInvalidArgument, "The messages of a conversation are not a list");
  for (const Json& message : messages) {
    if (!message.is_object())
      return Status(ErrorCode::kInvalidArgument, "A message of a conversation is not an object");
  }
  try {
    Interpreter interpreter(options.unix_time.value_or(now()));
    interpreter.define("messages", messages_of(messages));
    interpreter.define("tools", Value::of_json(options.tools));
    interpreter.define("documents", Value::of_json(options.documents));
    interpreter.define("add_generation_prompt", options.add_generation_prompt);
    for (const auto& [name, value] : options.variables.items())
      interpreter.define(name, Value::of_json(value));
    interpreter.render(parsed_->body);
    Rendered made;
    for (const auto& range : interpreter.generated())
      made.generated.push_back({range.begin, range.end});
    made.text = std::move(interpreter.text());
    return made;
  } catch (const TemplateError& e) {
    return failure(parsed_->where, e);
  }
}

}  // namespace neap::chat
