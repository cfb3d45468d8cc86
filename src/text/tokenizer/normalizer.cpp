#include "text/tokenizer/normalizer.h"

#include <map>

#include "base/text.h"
#include "text/tokenizer/byte_alphabet.h"

namespace neap::text {

SplitPattern pattern_of(const Tree& value, std::string_view where) {
  const Tree& regex = value.is_object() ? field(value, "Regex") : value;
  if (regex.is_string()) return {regex.get<std::string>(), where};
  const Tree& text = value.is_object() ? field(value, "String") : value;
  if (!text.is_string())
    corrupt(where,
            format("a pattern is {}; it must have a Regex or a String", excerpt(value.dump(), 80)));
  return SplitPattern::literal(text.get<std::string>(), where);
}

Normalizer::Normalizer(const Tree& config, std::string_view where) {
  if (!config.is_null()) add(config, where);
}

void Normalizer::add(const Tree& config, std::string_view where) {
  static const std::map<std::string, utf8::Form> kForms = {{"NFC", utf8::Form::kNfc},
                                                           {"NFD", utf8::Form::kNfd},
                                                           {"NFKC", utf8::Form::kNfkc},
                                                           {"NFKD", utf8::Form::kNfkd}};
  const std::string type = type_of(config, where, "normalizer");
  if (type == "Sequence") {
    for (const Tree& stage : stages_of(config, "normalizers", where)) add(stage, where);
  } else if (const auto form = kForms.find(type); form != kForms.end()) {
    stages_.emplace_back(form->second);
  } else if (type == "Lowercase") {
    stages_.emplace_back(Lowercase{});
  } else if (type == "ByteLevel") {
    stages_.emplace_back(ByteLevel{});
  } else if (type == "Prepend") {
    stages_.emplace_back(Prepend{text_of(field(config, "prepend"))});
  } else if (type == "Replace") {
    stages_.emplace_back(
        Replace{pattern_of(field(config, "pattern"), where), text_of(field(config, "content"))});
  } else if (type == "Strip") {
    stages_.emplace_back(
        Strip{flag(config, "strip_left", true), flag(config, "strip_right", true)});
  } else {
    refuse(where, format("its normalizer is {}; supported are NFC, NFD, NFKC, NFKD, Lowercase, "
                         "ByteLevel, Prepend, Replace, Strip and Sequence",
                         type));
  }
}

std::string Normalizer::apply(const Stage& stage, const std::string& text, Budget& budget) {
  if (const auto* form = std::get_if<utf8::Form>(&stage)) return utf8::normalize(text, *form);
  if (const auto* prepend = std::get_if<Prepend>(&stage))
    return text.empty() ? text : prepend->text + text;
  if (const auto* replace = std::get_if<Replace>(&stage))
    return replace->pattern.replace(text, replace->by, budget);
  if (std::holds_alternative<ByteLevel>(stage)) return token_of_bytes(text);
  if (const auto* strip = std::get_if<Strip>(&stage)) {
    std::string_view rest = text;
    if (strip->left) rest.remove_prefix(utf8::leading_space(rest));
    if (strip->right) rest.remove_suffix(utf8::trailing_space(rest));
    return std::string(rest);
  }
  std::string lower;
  lower.reserve(text.size());
  for (std::string_view rest = text; !rest.empty();) {
    const utf8::Point p = utf8::front(rest);
    if (p.value < 0) {
      lower += rest.substr(0, p.bytes);
    } else {
      utf8::append_lower(lower, p.value);
    }
    rest.remove_prefix(p.bytes);
  }
  return lower;
}

std::string Normalizer::apply(std::string_view text, Budget& budget) const {
  std::string out(text);
  for (const Stage& stage : stages_) {
    out = apply(stage, out, budget);
    budget.take(out.size());
  }
  return out;
}

}  // namespace neap::text
