#include <algorithm>

#include "weights/safetensors.h"

namespace neap::weights {

int bits_of_dtype(std::string_view dtype) {
  static const std::map<std::string_view, int> kBits = {
      {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
      {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
      {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
      {"I64", 64},        {"U64", 64}};
  const auto it = kBits.find(dtype);
  return it == kBits.end() ? 0 : it->second;
}

const char* dtype_name(spec::Dtype dtype) {
  return std::find_if(kDtypeNames.begin(), kDtypeNames.end(),
                      [&](const DtypeName& name) { return name.type == dtype; })
      ->name;
}

}  // namespace neap::weights
