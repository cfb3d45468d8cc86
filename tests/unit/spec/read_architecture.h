#pragma once

#include <gtest/gtest.h>

#include "base/json.h"
#include "spec/model/architecture.h"

namespace neap::spec {

/// A config.json that must be read without an error.
inline Architecture read_architecture(const Json& config) {
  Result<Architecture> a = Architecture::from_json(config, "config.json");
  EXPECT_TRUE(a.ok()) << a.status().message();
  return a.ok() ? *a : Architecture{};
}
inline Architecture read_architecture(const char* text) {
  return read_architecture(Json::parse(text));
}

}  // namespace neap::spec
