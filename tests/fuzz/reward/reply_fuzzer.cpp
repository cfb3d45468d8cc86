// Any reply of a reward program or server is refused with a short message, or gives one finite score or a failure for each item.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "reward/service.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<std::string> log = {"acc", "length"};
  const std::string_view reply(reinterpret_cast<const char*>(data), size);
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
    const auto scores = neap::reward::parse_reply(reply, {count, log});
    if (!scores.ok()) {
      require(!scores.status().message().empty() && scores.status().message().size() < 1024);
      continue;
    }
    require(scores->size() == count);
    for (const neap::reward::ItemReply& item : *scores) {
      require(item.score.has_value() == item.failure.empty());
      if (item.score)
        require(std::isfinite(item.score->value) && item.score->parts.size() == log.size());
    }
  }
  return 0;
}
