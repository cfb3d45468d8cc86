#include "rlhf/data/length_histogram.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "base/format.h"

namespace neap::rlhf {
namespace {

constexpr std::array kKinds = {"prompt", "response", "chosen", "rejected"};
constexpr std::size_t kBins = 40;  // the last bin ends at 2^39 tokens

// The bin of texts with (2^(bin - 1), 2^bin] tokens.
std::string bin_name(const std::string& kind, std::size_t bin) {
  return format("tokens/{}/{}", kind, bin);
}
std::string over_name(const std::string& kind) {
  return "over/" + kind;
}
std::string longest_name(const std::string& kind) {
  return "longest/" + kind;
}

std::uint64_t number(const Json& notes, const std::string& name) {
  return notes.value(name, std::uint64_t{0});
}

std::string bar(std::uint64_t count, std::uint64_t most) {
  constexpr std::uint64_t kWidth = 32;
  std::string out;
  for (std::uint64_t i = 0; i < count * kWidth / most; ++i) out += "█";
  return out.empty() ? "▏" : out;
}

std::string histogram(const Json& notes, const std::string& kind, std::int64_t limit) {
  std::vector<std::uint64_t> counts(kBins, 0);
  for (std::size_t bin = 0; bin < kBins; ++bin) counts[bin] = number(notes, bin_name(kind, bin));
  const auto used = [](std::uint64_t count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), used);
  if (first == counts.end()) return {};
  const auto last = std::find_if(counts.rbegin(), counts.rend(), used).base();
  std::uint64_t all = 0;
  for (const std::uint64_t count : counts) all += count;
  const std::uint64_t most = *std::max_element(counts.begin(), counts.end());
  const std::uint64_t over = number(notes, over_name(kind));
  std::string out = format("  {}: {} texts, the longest has {} tokens; {} over the limit of {}\n",
                           kind, all, number(notes, longest_name(kind)),
                           over == 0 ? "none is" : format("{} are", over), limit);
  for (auto at = first; at != last; ++at) {
    const auto bin = static_cast<std::size_t>(at - counts.begin());
    const std::uint64_t high = std::uint64_t{1} << bin, low = bin == 0 ? 1 : high / 2 + 1;
    out += format("  {:>15} {:>10}  {}\n",
                  low == high ? format("{}", high) : format("{} to {}", low, high), *at,
                  *at == 0 ? "" : bar(*at, most));
  }
  return out;
}

}  // namespace

void count_length(const LimitedText& text, std::int64_t tokens, const std::string& where,
                  data::EncodedRows& out) {
  const auto length = static_cast<std::uint64_t>(std::max<std::int64_t>(tokens, 1));
  ++out.counts[bin_name(text.kind, std::min<std::size_t>(std::bit_width(length - 1), kBins - 1))];
  std::uint64_t& longest = out.maxima[longest_name(text.kind)];
  longest = std::max(longest, length);
  if (tokens <= text.most) return;
  ++out.counts[over_name(text.kind)];
  out.firsts.try_emplace("first over/" + text.kind,
                         format("{}: the text has {} tokens", where, tokens));
}

std::optional<Overlong> overlong(const Json& notes, const std::string& kind) {
  const std::uint64_t count = number(notes, over_name(kind));
  if (count == 0) return std::nullopt;
  return Overlong{count, static_cast<std::int64_t>(number(notes, longest_name(kind))),
                  notes.value("first over/" + kind, std::string())};
}

std::string lengths_text(const Json& notes, std::int64_t prompt_limit,
                         std::int64_t response_limit) {
  std::string out;
  for (const std::string kind : kKinds)
    out += histogram(notes, kind, kind == "prompt" ? prompt_limit : response_limit);
  return out;
}

}  // namespace neap::rlhf
