// Any template is refused, ends with an error, or writes a text of bounded size.
#include <cstdlib>
#include <string_view>

#include "text/chat/template.h"

namespace {
void require(bool holds) {
  if (!holds) std::abort();
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const neap::Json messages = neap::Json::parse(
      R"([{"role":"system","content":"S"},{"role":"user","content":"é 1","n":[1,2.5,null,true]},
          {"role":"assistant","content":"<think>a</think>b","tool_calls":[{"id":"abcdef123",
           "function":{"name":"f","arguments":{"x":{"y":[]}}}}]}])");
  const auto parsed =
      neap::chat::Template::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!parsed.ok()) {
    require(parsed.status().message().starts_with("fuzz line "));
    return 0;
  }
  neap::chat::RenderOptions options;
  options.tools = messages[2]["tool_calls"];
  options.variables = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  options.unix_time = 0;
  const auto rendered = parsed->render(messages, options);
  if (!rendered.ok()) {
    require(rendered.status().message().starts_with("fuzz line "));
    return 0;
  }
  for (const auto& range : rendered->generated) {
    require(range.begin <= range.end);
  }
  return 0;
}
