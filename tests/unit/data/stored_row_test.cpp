#include "data/stored_row.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace neap::data {
namespace {

StoredRow some_row(std::uint64_t key) {
  StoredRow row;
  const auto draw = [&](std::uint64_t most) { return mix(key = mix(key)) % most; };
  row.texts.resize(draw(4));
  for (auto& text : row.texts) {
    text.resize(draw(300));
    for (auto& id : text) id = static_cast<std::int64_t>(draw(draw(2) == 0 ? 100 : 300000));
  }
  if (!row.texts.empty() && draw(2) == 0)
    for (std::size_t i = 0; i < row.texts.back().size(); ++i) row.mask.push_back(draw(5) != 0);
  row.margin = static_cast<float>(draw(100)) - 50;
  row.json = std::string(draw(50), 'x');
  return row;
}

TEST(StoredRow, ComesBackAsItWas) {
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const StoredRow row = some_row(i);
    ASSERT_EQ(unpack(pack(row)).value(), row) << i;
  }
}

TEST(StoredRow, OtherBytesAreAnErrorOrAnotherRow) {
  for (std::uint64_t i = 0; i < 300; ++i) {
    const std::string bytes = pack(some_row(i));
    for (std::size_t cut = 0; cut < bytes.size(); ++cut)
      ASSERT_FALSE(unpack(std::string_view(bytes).substr(0, cut)).ok()) << i << " cut at " << cut;
    ASSERT_FALSE(unpack(bytes + "x").ok());
    std::string other = bytes;
    other[mix(i) % other.size()] = static_cast<char>(mix(i + 1));
    (void)unpack(other);
  }
}

}  // namespace
}  // namespace neap::data
