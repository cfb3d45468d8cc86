#include "spec/types/data_config.h"

#include "spec/types/names.h"

namespace neap::spec {
namespace {

constexpr Named<Truncation> kTruncations[] = {
    {"error", Truncation::kError},
    {"left", Truncation::kLeft},
    {"right", Truncation::kRight},
    {"middle", Truncation::kMiddle},
};

}  // namespace

std::vector<std::string> truncation_names() {
  return names_of(kTruncations);
}

std::string_view to_string(Truncation truncation) {
  return name_of(kTruncations, truncation);
}

Result<Truncation> parse_truncation(std::string_view name) {
  return parse_name(kTruncations, name, "data.truncation");
}

}  // namespace neap::spec
