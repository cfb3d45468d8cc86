// Formats rollouts for the console (rollout_log.h).
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/format.h"
#include "base/text.h"
#include "report/rollout_log.h"

namespace neap::report {
namespace {

constexpr std::size_t kIndent = 12;  // of texts after "  response  "

bool is_part(const std::string& reward) {
  return reward.find('/') != std::string::npos;
}

// Wraps `text` to at most `lines` lines of `columns`. The name precedes the first line.
std::string block(std::string_view name, std::string_view text, std::size_t lines,
                  std::size_t columns) {
  const std::size_t width = std::max<std::size_t>(columns, kIndent + 8) - kIndent;
  std::string rest = shortened(printable(text), lines * width);
  std::string out = format("  {:<{}}", name, kIndent - 2);
  for (bool first = true; first || !rest.empty(); first = false) {
    const std::size_t bytes = bytes_of_columns(rest, width);
    out += (first ? "" : std::string(kIndent, ' ')) + rest.substr(0, bytes) + "\n";
    rest.erase(0, bytes);
  }
  return out;
}

}  // namespace

std::vector<const Rollout*> some_of(std::span<const Rollout> rollouts, std::size_t count) {
  std::vector<const Rollout*> all;
  for (const Rollout& rollout : rollouts) all.push_back(&rollout);
  std::stable_sort(all.begin(), all.end(),
                   [](const Rollout* a, const Rollout* b) { return a->score > b->score; });
  if (all.size() <= count) return all;
  if (count == 1) return {all[all.size() / 2]};
  std::vector<const Rollout*> out;
  for (std::size_t i = 0; i < count; ++i) out.push_back(all[i * (all.size() - 1) / (count - 1)]);
  return out;
}

std::string rollouts_text(std::span<const Rollout* const> rollouts, std::size_t columns) {
  std::string out;
  for (const Rollout* rollout : rollouts) {
    std::string head = format("  score {:.4g}", rollout->score);
    if (!rollout->verdict.empty()) head += format("   {}", printable(rollout->verdict));
    // With one function its score is the total. Parts of a function's score are only in
    // rollouts.jsonl.
    const bool several = std::count_if(rollout->rewards.begin(), rollout->rewards.end(),
                                       [](const auto& r) { return !is_part(r.first); }) > 1;
    for (const auto& [name, value] : rollout->rewards)
      if ((several || value != rollout->score) && !is_part(name) && !std::isnan(value))
        head += format("   {} {:.4g}", printable(name), value);
    head += format("   {} tokens{}", rollout->tokens, rollout->truncated ? ", cut" : "");
    out += shortened(head, columns) + "\n";
    out += block("prompt", rollout->prompt, 2, columns);
    if (!rollout->ground_truth.empty())
      out += block("truth", joined(rollout->ground_truth, " | "), 1, columns);
    out += block("response", rollout->response, 3, columns);
  }
  return out;
}

}  // namespace neap::report
