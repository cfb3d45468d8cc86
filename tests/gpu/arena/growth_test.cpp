// Nothing grows over a thousand cycles on a real card, beyond what the same driver calls alone cost.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>

#include "base/json.h"

namespace neap {
namespace {

/// The last line of growth_program, which lies beside this test; none where there is no card.
std::optional<Json> last_look(const std::string& arguments) {
  const auto program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "growth_program";
  std::FILE* out = ::popen(("'" + program.string() + "' " + arguments).c_str(), "r");
  EXPECT_NE(out, nullptr);
  if (out == nullptr) return std::nullopt;
  std::string text;
  std::string last;
  std::array<char, 4096> line{};
  while (std::fgets(line.data(), static_cast<int>(line.size()), out) != nullptr) {
    last = line.data();
    text += last;
  }
  const int code = ::pclose(out);
  if (WIFEXITED(code) && WEXITSTATUS(code) == 77) return std::nullopt;
  EXPECT_EQ(code, 0) << arguments;
  std::printf("%s", text.c_str());
  auto parsed = parse_json(last, arguments);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.ok() ? std::optional<Json>(*parsed) : std::nullopt;
}

class Growth : public testing::TestWithParam<const char*> {};

TEST_P(Growth, NoMoreThanPlainDriverCalls) {
  const std::string rest = std::string(" --cycles 1000 ") + GetParam();
  const auto plain = last_look("plain" + rest);
  if (!plain && !HasFailure()) GTEST_SKIP() << "no NVIDIA driver here";
  const auto arena = last_look("arena" + rest);
  ASSERT_TRUE(plain && arena);
  const auto grown = [](const Json& look, const char* what) {
    return look.value(what, std::int64_t{0});
  };
  const auto mib = [](std::int64_t n) { return n << 20; };
  EXPECT_LE(grown(*arena, "device_growth"), grown(*plain, "device_growth") + mib(2));
  EXPECT_LE(grown(*arena, "resident_growth"), grown(*plain, "resident_growth") + mib(1));
  EXPECT_LE(grown(*arena, "heap_growth"), grown(*plain, "heap_growth") + (64 << 10));
  EXPECT_LE(grown(*arena, "mappings_growth"), grown(*plain, "mappings_growth") + 4);
}

INSTANTIATE_TEST_SUITE_P(Cycles, Growth, testing::Values("", "--no-copy", "--keep"),
                         [](const auto& how) {
                           const std::string name = how.param;
                           return name.empty()          ? std::string("Released")
                                  : name == "--no-copy" ? std::string("ReleasedAndDiscarded")
                                                        : std::string("Kept");
                         });

}  // namespace
}  // namespace neap
