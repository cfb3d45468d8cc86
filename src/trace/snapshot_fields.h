// Reads values of a record's fields; errors name the field. Internal to the snapshot reader.
// Inline, because every field of every event passes here.
#pragma once

#include "trace/snapshot_store.h"

namespace neap::trace::snapshot {

inline Word word(Value v) {
  return v.tag() == Tag::kText && v.payload() < static_cast<std::uint64_t>(Word::kCount)
             ? static_cast<Word>(v.payload())
             : Word::kEmpty;
}
inline std::string_view name_of(Word w) {
  return kWords[static_cast<std::size_t>(w)];
}

inline bool Store::unsigned_of(std::string_view record, Word key, Value v, std::uint64_t& out) {
  if (!is_integer(v) || (v.tag() != Tag::kBig && static_cast<std::int64_t>(bits(v)) < 0))
    return wrong(record, key, v);
  out = bits(v);
  return true;
}

inline bool Store::device_of(std::string_view record, Value v, std::uint16_t& out) {
  if (!is_integer(v)) return wrong(record, Word::kDevice, v);
  const auto n = static_cast<std::int64_t>(bits(v));
  if (v.tag() == Tag::kBig || n < -1 || n > 0xFFFE) return wrong(record, Word::kDevice, v);
  out = static_cast<std::uint16_t>(n < 0 ? 0 : n);
  return true;
}

inline bool Store::stack_of(std::string_view record, Value v, std::uint32_t& out) {
  if (v.tag() == Tag::kStack) {
    out = static_cast<std::uint32_t>(v.payload());
    return true;
  }
  if (v.tag() == Tag::kNone || (v.tag() == Tag::kList && list(v).count == 0)) return true;
  return wrong(record, Word::kFrames, v);
}

inline bool Store::word_of(std::string_view record, Word key, Value v, Word& out) {
  if (v.tag() != Tag::kText) return wrong(record, key, v);
  out = word(v);
  return true;
}

}  // namespace neap::trace::snapshot
