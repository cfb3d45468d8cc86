#include "trace/snapshot_settings.h"

#include <algorithm>
#include <string>

#include "base/json.h"
#include "base/text.h"

namespace neap::trace::snapshot {

bool SettingsReader::read(Value dict, RecordedSettings& out) {
  out.present = true;
  const Dict& d = store_.dict(dict);
  if (d.count > 1000) return false;
  for (std::uint64_t i = 0; i < d.count; ++i) {
    const Value k = store_.key(d, i);
    if (k.tag() != Tag::kText) continue;
    take_setting(text(k), store_.value(d, i), out);
  }
  std::size_t budget = 10000;
  out.json = json_text(to_json(dict, 0, budget));
  return true;
}

void SettingsReader::take_setting(std::string_view key, Value v, RecordedSettings& s) {
  const bool truth = v.tag() == Tag::kTrue;
  const bool whole = store_.is_integer(v);
  if ((key == "PYTORCH_CUDA_ALLOC_CONF" || key == "PYTORCH_ALLOC_CONF") && v.tag() == Tag::kText) {
    if (s.conf.empty()) s.conf = text(v);
  } else if (key == "max_split_size" && whole) {
    s.max_split_size = static_cast<std::int64_t>(store_.bits(v));
  } else if (key == "garbage_collection_threshold") {
    if (v.tag() == Tag::kReal) s.garbage_collection_threshold = store_.real(v);
    if (whole) s.garbage_collection_threshold = static_cast<double>(store_.bits(v));
  } else if (key == "expandable_segments") {
    s.expandable_segments = truth;
  } else if (key == "trace_alloc_max_entries" && whole) {
    s.trace_alloc_max_entries = store_.bits(v);
  } else if (key == "trace_alloc_overflowed") {
    overflowed_ = v;
  } else if (key == "roundup_power2_divisions" && v.tag() == Tag::kDict) {
    const Dict& d = store_.dict(v);
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(d.count, 64); ++i) {
      const Value k = store_.key(d, i);
      const Value n = store_.value(d, i);
      if (k.tag() != Tag::kText || !store_.is_integer(n)) continue;
      for (std::size_t slot = 0; slot < s.roundup_power2_divisions.size(); ++slot) {
        if (text(k) == std::to_string(1U << slot))
          s.roundup_power2_divisions[slot] = static_cast<std::uint32_t>(store_.bits(n));
      }
    }
  }
}

bool SettingsReader::overflowed(std::uint16_t ordinal) const {
  Value said = overflowed_;
  if (said.tag() == Tag::kList) {
    const List& list = store_.list(said);
    said = ordinal < list.count ? store_.item(list, ordinal) : Value();
  } else if (said.tag() == Tag::kDict) {
    const Dict& d = store_.dict(said);
    said = {};
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(d.count, 1000); ++i) {
      const Value k = store_.key(d, i);
      if ((store_.is_integer(k) && store_.bits(k) == ordinal) ||
          (k.tag() == Tag::kText && text(k) == std::to_string(ordinal)))
        said = store_.value(d, i);
    }
  }
  return said.tag() == Tag::kTrue;
}

Json SettingsReader::to_json(Value v, int depth, std::size_t& budget) const {
  if (budget == 0 || depth > 6) return "...";
  --budget;
  switch (v.tag()) {
    case Tag::kTrue:
      return true;
    case Tag::kFalse:
      return false;
    case Tag::kInt:
    case Tag::kWide:
      return static_cast<std::int64_t>(store_.bits(v));
    case Tag::kBig:
      return store_.bits(v);
    case Tag::kReal:
      return store_.real(v);
    case Tag::kText:
      return std::string(front_of(text(v), 4096));
    case Tag::kPool: {
      const auto& pair = store_.pools[v.payload()];
      return Json::array({pair.first, pair.second});
    }
    case Tag::kList: {
      Json list = Json::array();
      const List& l = store_.list(v);
      for (std::uint64_t i = 0; i < l.count && budget > 0; ++i)
        list.push_back(to_json(store_.item(l, i), depth + 1, budget));
      return list;
    }
    case Tag::kDict: {
      Json dict = Json::object();
      const Dict& d = store_.dict(v);
      for (std::uint64_t i = 0; i < d.count && budget > 0; ++i) {
        const Value k = store_.key(d, i);
        const std::string key(k.tag() == Tag::kText  ? front_of(text(k), 256)
                              : store_.is_integer(k) ? std::to_string(store_.bits(k))
                                                     : "...");
        dict[key] = to_json(store_.value(d, i), depth + 1, budget);
      }
      return dict;
    }
    default:
      return nullptr;
  }
}

}  // namespace neap::trace::snapshot
