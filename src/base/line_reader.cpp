#include "base/line_reader.h"

#include <algorithm>
#include <cstring>

#include "base/format.h"

namespace neap {

std::string LineReader::where(std::uint64_t number) const {
  return format("{}:{}", input_.name(), number);
}

Result<bool> LineReader::next(Line& line) {
  constexpr std::size_t kFirstWindow = std::size_t{1} << 16;
  const std::size_t most = limits_->part.count();
  // The returned text stays valid until the next call of ensure().
  const auto take = [&](std::size_t bytes, bool ended) {
    line = {{reinterpret_cast<const char*>(input_.data()), bytes}, ++lines_, ended};
    input_.advance(bytes + (ended ? 1 : 0));
    return true;
  };
  std::size_t searched = 0;
  while (true) {
    const std::size_t have = std::min(input_.available(), most + 1);
    const std::uint8_t* const text = input_.data();
    if (const void* end = std::memchr(text + searched, '\n', have - searched))
      return take(static_cast<std::size_t>(static_cast<const std::uint8_t*>(end) - text), true);
    if (have > most)
      return over_limit(where(lines_ + 1), *limits_, Excess::kPart, 0, ErrorCode::kCorrupt);
    searched = have;
    const std::size_t wanted = std::min(std::max(2 * have, kFirstWindow), most + 1);
    if (input_.ensure(wanted) || input_.available() > have) continue;
    if (!input_.status().ok())
      return Status(input_.status()).with_context(format("reading {}", where(lines_ + 1)));
    return have > 0 && take(have, false);
  }
}

}  // namespace neap
