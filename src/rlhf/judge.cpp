#include "rlhf/judge.h"

#include <cctype>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/status.h"

namespace neap::rlhf {

Judge Judge::load(const std::filesystem::path& file) {
  const std::string where = file.string();
  const Json json = value_or_throw(parse_json(value_or_throw(read_file(file, 16_MiB)), where));
  const auto words = [&](const char* key) {
    std::unordered_set<std::string> out;
    if (!json.is_object() || !json.contains(key) || !json[key].is_array()) {
      throw Error(ErrorCode::kCorrupt, format("{}: \"{}\" is not a list of words", where, key));
    }
    for (const Json& word : json[key]) {
      if (!word.is_string()) {
        throw Error(ErrorCode::kCorrupt, format("{}: \"{}\" holds {}", where, key, word.dump()));
      }
      out.insert(word.get<std::string>());
    }
    return out;
  };
  Judge judge;
  judge.friendly_ = words("friendly");
  judge.unfriendly_ = words("unfriendly");
  for (const std::string& word : judge.friendly_) {
    if (judge.unfriendly_.contains(word)) {
      throw Error(ErrorCode::kCorrupt, format("{}: \"{}\" is in both lists", where, word));
    }
  }
  return judge;
}

Judge::Verdict Judge::judge(std::string_view text) const {
  std::int64_t balance = 0;
  std::string word;
  const auto end_word = [&] {
    if (friendly_.contains(word)) ++balance;
    if (unfriendly_.contains(word)) --balance;
    word.clear();
  };
  for (const char c : text) {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else {
      end_word();
    }
  }
  end_word();
  if (balance == 0) return Verdict::kNeither;
  return balance > 0 ? Verdict::kFriendly : Verdict::kUnfriendly;
}

std::string_view Judge::name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFriendly:
      return "friendly";
    case Verdict::kUnfriendly:
      return "unfriendly";
    case Verdict::kNeither:
      break;
  }
  return "neither";
}

}  // namespace neap::rlhf
