#include "reward/ground_truth.h"

#include <array>
#include <string_view>

#include "base/format.h"
#include "reward/number.h"

namespace neap::reward {
namespace {

constexpr std::array<std::string_view, 5> kUsualFields = {
    "reward_model.ground_truth", "ground_truth", "answer", "solution", "label"};

const Json* find(const Json& row, std::string_view path) {
  const Json* at = &row;
  while (!path.empty()) {
    const auto dot = path.find('.');
    const std::string key(path.substr(0, dot));
    if (!at->is_object() || !at->contains(key)) return nullptr;
    at = &(*at)[key];
    path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
  }
  return at;
}

Status wrong(std::string message) {
  return {ErrorCode::kCorrupt, std::move(message)};
}

// `place` names the field, or an element of the field's list.
Result<std::string> text_of(const Json& value, const std::string& place) {
  if (value.is_number()) return value.dump();
  if (value.is_string()) {
    std::string text(trimmed(value.get_ref<const std::string&>()));
    if (!text.empty()) return text;
    return wrong(format("{} is empty; it has to hold the right answer", place));
  }
  return wrong(
      format("{} is {}; text, a number or a list of them is wanted", place, value.type_name()));
}

struct Field {
  std::string_view name;
  const Json* value = nullptr;
};

Field field_of(const Json& row, std::string_view path) {
  if (!path.empty()) return {path, find(row, path)};
  for (const std::string_view usual : kUsualFields)
    if (const Json* value = find(row, usual)) return {usual, value};
  return {};
}

}  // namespace

const Json* ground_truth_field(const Json& row, const std::string& path) {
  return field_of(row, path).value;
}

Result<std::vector<std::string>> ground_truths(const Json& row, const std::string& path) {
  const auto [field, value] = field_of(row, path);
  if (value == nullptr) {
    if (!path.empty()) return wrong(format("field \"{}\" is missing", path));
    std::string names;
    for (const std::string_view usual : kUsualFields)
      names += (names.empty() ? "" : ", ") + std::string(usual);
    return wrong(
        format("the row has no right answer: none of the fields {}; name its field as the "
               "function's ground_truth",
               names));
  }
  const std::string place = format("field \"{}\"", field);
  std::vector<std::string> out;
  if (!value->is_array()) {
    NEAP_TRY_ASSIGN(std::string text, text_of(*value, place));
    out.push_back(std::move(text));
    return out;
  }
  for (std::size_t i = 0; i < value->size(); ++i) {
    NEAP_TRY_ASSIGN(std::string text,
                    text_of((*value)[i], format("element {} of {}", i + 1, place)));
    out.push_back(std::move(text));
  }
  if (out.empty()) return wrong(format("{} is an empty list", place));
  return out;
}

}  // namespace neap::reward
