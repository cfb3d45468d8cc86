// A judge that training does not use: counts friendly and unfriendly words of a text.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_set>

namespace neap::rlhf {

class Judge {
 public:
  /// {"friendly": [words], "unfriendly": [words]}. Fails on another form or a word in both lists.
  [[nodiscard]] static Judge load(const std::filesystem::path& file);

  enum class Verdict { kFriendly, kUnfriendly, kNeither };
  /// Which list has more words of the text; case does not matter.
  [[nodiscard]] Verdict judge(std::string_view text) const;
  [[nodiscard]] static std::string_view name(Verdict verdict);

 private:
  std::unordered_set<std::string> friendly_, unfriendly_;
};

}  // namespace neap::rlhf
