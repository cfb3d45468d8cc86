#include "text/tokenizer/text_budget.h"

#include "base/bytes.h"
#include "base/format.h"
#include "base/status.h"

namespace neap::text {
namespace {

// Tokenizers need about 20 steps and 0.1 microseconds per byte.
constexpr std::int64_t kSteps = 20'000'000, kStepsOfByte = 1000;
constexpr double kSeconds = 10, kSecondsOfByte = 1e-5;

void fail(Budget::Spent spent, const Budget::Limits& limits) {
  if (spent == Budget::Spent::kBytes)
    throw Error(ErrorCode::kUnsupported,
                format("The tokenizer writes more than {} for one text: its normalizer, "
                       "pre_tokenizer or decoder repeats replacements. Check its tokenizer.json",
                       to_string(Bytes(limits.bytes))));
  throw Error(ErrorCode::kUnsupported,
              format("The tokenizer takes more than {} for one text: its patterns or added tokens "
                     "need too much work. Check its tokenizer.json",
                     spent == Budget::Spent::kSeconds ? format("{:.0f} s", limits.seconds)
                                                      : format("{} steps", limits.steps)));
}

}  // namespace

Budget text_budget(std::size_t bytes) {
  return Budget(
      {kSteps + kStepsOfByte * static_cast<std::int64_t>(bytes), kAllowance + kMostGrowth * bytes,
       kSeconds + kSecondsOfByte * static_cast<double>(bytes)},
      fail);
}

}  // namespace neap::text
