// Conversion between enums and their configuration names.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "base/format.h"
#include "spec/wrong.h"

namespace neap::spec {

/// The enum value whose number is the index of `name` in `names`. `what` names the setting in
/// messages.
template <class Enum, class Names>
[[nodiscard]] Result<Enum> parse_name(const Names& names, std::string_view name,
                                      std::string_view what) {
  const auto it = std::find(names.begin(), names.end(), name);
  if (it != names.end()) return static_cast<Enum>(it - names.begin());
  std::string known;
  for (const std::string_view each : names)
    known += (known.empty() ? "" : ", ") + std::string(each);
  return wrong(format("{} is \"{}\"; it can be {}", what, name, known));
}

}  // namespace neap::spec
