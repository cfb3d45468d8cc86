// Regular expressions from users, with bounds on the work of one search.
//
// Threads   const functions from any thread.
//
// Failure   Status.
//
// Cost      compiled once. A search that exceeds 5 million steps or 64 MiB returns no match;
//           gave_up() counts such searches.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string_view>

#include "base/status.h"

namespace neap::reward {

class Pattern {
 public:
  [[nodiscard]] static Result<Pattern> compile(std::string_view pattern);
  [[nodiscard]] bool found_in(std::string_view text) const;
  /// Group 1 of the last match, or the whole match if the pattern has no group.
  [[nodiscard]] std::optional<std::string_view> last_match(std::string_view text) const;
  /// Number of searches that exceeded a limit.
  [[nodiscard]] std::uint64_t gave_up() const;

 private:
  struct Code;
  std::shared_ptr<Code> code_;
};

}  // namespace neap::reward
