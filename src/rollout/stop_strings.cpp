#include "rollout/stop_strings.h"

#include <algorithm>
#include <utility>

namespace neap::rollout {

StopStrings::StopStrings(const text::Tokenizer& tokenizer, std::vector<std::string> strings)
    : tokenizer_(tokenizer), strings_(std::move(strings)) {
  std::erase(strings_, "");
  for (const std::string& s : strings_) longest_ = std::max(longest_, s.size());
}

bool StopStrings::push(std::size_t response, std::int64_t token) {
  if (strings_.empty()) return false;
  auto it = texts_.find(response);
  if (it == texts_.end())
    it = texts_.emplace(response, Text{text::StreamDecoder(tokenizer_), ""}).first;
  std::string& tail = it->second.tail;
  tail += it->second.decoder.push(token);
  const bool stops = std::any_of(strings_.begin(), strings_.end(), [&](const std::string& s) {
    return tail.find(s) != std::string::npos;
  });
  if (stops)
    texts_.erase(it);
  else if (tail.size() >= longest_)
    tail.erase(0, tail.size() - (longest_ - 1));
  return stops;
}

}  // namespace neap::rollout
