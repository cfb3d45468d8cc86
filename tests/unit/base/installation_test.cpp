#include "base/installation.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace neap {
namespace {

TEST(Installation, AVariableChoosesALibraryAndMistakesAreNamed) {
  constexpr const char* kVariable = "NEAP_TEST_LIBRARY";
  ::unsetenv(kVariable);
  const auto missing = find_library("libnowhere.so", kVariable);
  EXPECT_EQ(missing.status().code(), ErrorCode::kNotFound);
  EXPECT_NE(missing.status().message().find("libnowhere.so is in none of: /"), std::string::npos);
  EXPECT_FALSE(find_library("libnowhere.so", nullptr).ok());
  ::setenv(kVariable, "", 1);
  EXPECT_EQ(find_library("libnowhere.so", kVariable).status().message(),
            missing.status().message());
  const auto file = std::filesystem::temp_directory_path() / "neap_installation_test.so";
  std::ofstream(file) << "x";
  ::setenv(kVariable, file.c_str(), 1);
  EXPECT_EQ(find_library("libnowhere.so", kVariable).value(), file);
  std::filesystem::remove(file);
  EXPECT_NE(find_library("libnowhere.so", kVariable).status().message().find("which is not a file"),
            std::string::npos);
  ::unsetenv(kVariable);
}

}  // namespace
}  // namespace neap
