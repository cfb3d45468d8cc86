// Any config.json is refused or gives a model of finite sizes that is read again as it was written.
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "spec/model/layout.h"

namespace {

using namespace neap;        // NOLINT(google-build-using-namespace)
using namespace neap::spec;  // NOLINT(google-build-using-namespace)

void require(bool holds) {
  if (!holds) std::abort();
}

void check_rotary(const Architecture& a) {
  // Millions of frequencies would only be slow.
  if (a.rotary.dimensions > 4096) return;
  for (const std::int64_t length : {std::int64_t{1}, std::int64_t{1} << 26}) {
    const RotaryTable table = rotary_table(a.rotary, length);
    require(table.frequencies.size() == static_cast<std::size_t>(a.rotary.dimensions / 2));
    for (const float f : table.frequencies) require(std::isfinite(f) && f >= 0);
    require(std::isfinite(table.attention_factor) && table.attention_factor > 0);
  }
}

void check_layout(const Architecture& a, Head head) {
  const auto units = flat_layout(a, head);
  for (const FlatUnit& unit : units) {
    std::int64_t end = 0;
    for (const Parameter& p : unit.parameters) {
      require(p.elements() > 0 && p.offset >= end);
      end = p.offset + p.elements();
    }
    require(unit.elements >= end);
  }
  const Result<Architecture> again = Architecture::from_json(a.to_json(head), "written");
  require(again.ok());
  require(total_elements(flat_layout(*again, head)) == total_elements(units));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<Json> json = parse_json(text, "fuzz");
  if (!json.ok()) return 0;
  const Result<Architecture> a = Architecture::from_json(*json, "fuzz");
  if (!a.ok()) return 0;
  check_rotary(*a);
  if (a->num_hidden_layers > 64) return 0;
  check_layout(*a, Head::kLanguageModel);
  check_layout(*a, Head::kScalar);
  return 0;
}
