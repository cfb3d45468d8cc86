// Regular expressions from users, with bounds on the work of one text.
//
// Threads   const functions from any thread.
//
// Failure   Status. kInvalidArgument for a text on which a search exceeds
//           read_limits::kRewardPattern.
//
// Cost      compiled once.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/regex.h"
#include "base/status.h"

namespace neap::reward {

class Pattern {
 public:
  [[nodiscard]] static Result<Pattern> compile(std::string_view pattern);
  [[nodiscard]] Result<bool> found_in(std::string_view text) const;
  /// Group 1 of the last match, or the whole match if the pattern has no group.
  [[nodiscard]] Result<std::optional<std::string_view>> last_match(std::string_view text) const;

 private:
  Pattern(Regex regex, std::string_view text) : regex_(std::move(regex)), text_(text) {}
  [[nodiscard]] Result<bool> search(std::string_view text, std::size_t from,
                                    Regex::Finds& finds) const;
  Regex regex_;
  std::string text_;
};

}  // namespace neap::reward
