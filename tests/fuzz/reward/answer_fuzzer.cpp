// Answers of responses, which a model may write as it likes: found, read and compared without a crash, and each equal to
// itself. Input: an answer and a ground truth, divided by a zero byte.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "reward/extract.h"
#include "reward/number.h"
#include "reward/symbolic.h"

namespace {

using neap::spec::Extraction;

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = all.find('\0');
  const std::string_view answer = all.substr(0, zero);
  const std::string_view truth = zero == std::string_view::npos ? "1" : all.substr(zero + 1);
  for (const Extraction how :
       {Extraction::kWhole, Extraction::kHashes, Extraction::kBoxed, Extraction::kAnswerTag,
        Extraction::kAnswerLine, Extraction::kLastNumber}) {
    const auto found = neap::reward::extract(answer, how);
    if (!found || found->empty()) continue;
    require(found->data() >= answer.data() &&
            found->data() + found->size() <= answer.data() + answer.size());
    (void)neap::reward::SymbolicTruth(truth).equals(*found);
    require(neap::reward::SymbolicTruth(*found).equals(*found));
    if (const auto number = neap::reward::canonical_decimal(*found))
      require(neap::reward::canonical_decimal(*number) == number);
  }
  return 0;
}
