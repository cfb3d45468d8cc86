#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "rollout/stop_strings.h"

namespace neap::rollout {
namespace {

text::Tokenizer tokenizer() {
  return text::Tokenizer::from_folder(std::filesystem::path(NEAP_SOURCE_DIR) /
                                      "examples/reviews/model");
}

// As many tokens as the text needs to contain one of `strings`; 0: it never does.
std::size_t tokens_until(const text::Tokenizer& t, const std::vector<text::TokenId>& ids,
                         const std::vector<std::string>& strings) {
  for (std::size_t n = 1; n <= ids.size(); ++n) {
    const std::string text = t.decode({ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n)});
    for (const std::string& s : strings) {
      if (!s.empty() && text.find(s) != std::string::npos) return n;
    }
  }
  return 0;
}

TEST(StopStrings, AreFoundWhereverTokensCutThem) {
  const text::Tokenizer t = tokenizer();
  const std::string text = "The film was wonderful, na\xc3\xafve and long.\n\nIt was not bad";
  const std::vector<text::TokenId> ids = t.encode(text);
  const std::vector<std::vector<std::string>> lists = {{"\n\n"},     {"wonderful, na"},
                                                       {"\xc3\xaf"}, {"long", "film"},
                                                       {"nowhere"},  {"", "It was "},
                                                       {text},       {"bad"},
                                                       {"T"},        {}};
  for (const auto& strings : lists) {
    StopStrings stops(t, strings);
    std::size_t stopped = 0;
    for (std::size_t n = 1; n <= ids.size() && stopped == 0; ++n) {
      (void)stops.push(7, ids[0]);  // another response in between
      if (stops.push(3, ids[n - 1])) stopped = n;
    }
    EXPECT_EQ(stopped, tokens_until(t, ids, strings)) << ::testing::PrintToString(strings);
  }
}

}  // namespace
}  // namespace neap::rollout
