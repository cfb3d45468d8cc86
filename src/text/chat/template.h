// Chat templates: Jinja2 as transformers sets it up, without Python.
//
// A template is text of a checkpoint, so it is not trusted. It can only read what it is given and write
// text, and a rendering that exceeds a bound fails: 1 MiB of source, 20 million steps of work, 256 MiB of
// memory for its values, 64 MiB for a text.
//
// Threads   const calls from any thread.
// Failure   Status with the template's name and the line; nothing is thrown.
// Cost      parsing some 10 MB/s, rendering a conversation some 10 microseconds a message;
//           texts of the conversation are not copied.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace neap::chat {

struct RenderOptions {
  Json tools;      ///< null: none
  Json documents;  ///< null: none
  bool add_generation_prompt = false;
  /// More variables, such as bos_token; they replace those above.
  Json variables = Json::object();
  /// What strftime_now tells, in local time; absent: now.
  std::optional<std::int64_t> unix_time;
};

struct Rendered {
  struct Range {
    std::size_t begin, end;  ///< bytes of the text
  };
  std::string text;
  std::vector<Range> generated;  ///< what {% generation %} blocks wrote, in order
};

class Template {
 public:
  /// `where` names the template in messages.
  [[nodiscard]] static Result<Template> parse(std::string_view source, std::string_view where);
  /// `messages`: objects with "role" and mostly "content".
  [[nodiscard]] Result<Rendered> render(const Json& messages, const RenderOptions& options) const;

 private:
  struct Parsed;
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace neap::chat
