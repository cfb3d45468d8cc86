// Names of an enum's values, in files, messages and configurations: a table for each enum, whose
// rows have `name` and `value`, and may have more.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/format.h"
#include "base/text.h"
#include "spec/types/wrong.h"

namespace neap::spec {

template <class Enum>
struct Named {
  std::string_view name;
  Enum value;
};

/// The first row of a value that has one.
template <class Table, class Enum>
[[nodiscard]] constexpr const auto& row_of(const Table& table, Enum value) {
  return *std::find_if(std::begin(table), std::end(table),
                       [&](const auto& row) { return row.value == value; });
}
template <class Table, class Enum>
[[nodiscard]] constexpr std::string_view name_of(const Table& table, Enum value) {
  return row_of(table, value).name;
}

template <class Table>
[[nodiscard]] std::vector<std::string> names_of(const Table& table) {
  std::vector<std::string> names;
  for (const auto& row : table) names.emplace_back(row.name);
  return names;
}

/// `what` names the setting in messages.
[[nodiscard]] inline Status wrong_name(std::string_view name, std::string_view what,
                                       const std::vector<std::string>& known) {
  return wrong(format("{} is \"{}\"; it can be {}", what, name, joined(known, ", ")));
}
template <class Table>
[[nodiscard]] auto parse_name(const Table& table, std::string_view name, std::string_view what)
    -> Result<std::remove_cvref_t<decltype(std::begin(table)->value)>> {
  for (const auto& row : table)
    if (row.name == name) return row.value;
  return wrong_name(name, what, names_of(table));
}

}  // namespace neap::spec
