#include "base/format.h"

#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include <fmt/args.h>
#include <fmt/format.h>

namespace neap::detail {

std::string vformat(std::string_view text, std::span<const FormatArg> arguments) {
  fmt::dynamic_format_arg_store<fmt::format_context> store;
  store.reserve(arguments.size(), 0);
  for (const FormatArg& argument : arguments) {
    std::visit(
        [&](const auto& value) {
          if constexpr (std::is_same_v<decltype(value), const Bytes&>)
            store.push_back(to_string(value));
          else
            store.push_back(value);
        },
        argument);
  }
  return fmt::vformat(fmt::string_view(text.data(), text.size()), store);
}

}  // namespace neap::detail
