// Chat templates: Jinja2 as transformers configures it, without Python.
//
// A template comes with a checkpoint, so it is not trusted. It can only read its inputs and write
// text. A rendering fails if it exceeds a bound: 1 MiB of source, 20 million steps, 256 MiB for its
// values, 64 MiB for a text.
//
// Threads   const calls from any thread.
//
// Failure   Status with the template's name and the line; nothing is thrown.
//
// Cost      parsing about 10 MB/s, rendering about 10 microseconds per message. Texts of the
//           conversation are not copied.
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
  /// Additional variables, such as bos_token; they override the ones above.
  Json variables = Json::object();
  /// Time for strftime_now, in local time; absent: the current time.
  std::optional<std::int64_t> unix_time;
};

struct Rendered {
  struct Range {
    std::size_t begin, end;  ///< byte range of the text
  };
  std::string text;
  std::vector<Range> generated;  ///< output of {% generation %} blocks, in order
};

class Template {
 public:
  /// `where` names the template in messages.
  [[nodiscard]] static Result<Template> parse(std::string_view source, std::string_view where);
  /// `messages`: objects with "role" and usually "content".
  [[nodiscard]] Result<Rendered> render(const Json& messages, const RenderOptions& options) const;

 private:
  struct Parsed;
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace neap::chat
