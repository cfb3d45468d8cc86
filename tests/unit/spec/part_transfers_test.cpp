#include "spec/model/part_transfers.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "read_architecture.h"

namespace neap::spec {
namespace {

constexpr std::int64_t kNothing = -1;

Architecture golden_architecture(const std::string& name) {
  const auto text = read_file(
      std::string(NEAP_SOURCE_DIR) + "/tests/golden/architectures/" + name + ".json", 1_MiB);
  EXPECT_TRUE(text.ok()) << name;
  return read_architecture(Json::parse(*text)["config"]);
}

std::int64_t columns_of(const Parameter& p) {
  return p.shape.size() == 1 ? 1 : p.shape[1];
}

// What a part has of a parameter whose elements are their numbers, row by row.
std::vector<std::int64_t> part_of_numbers(const Architecture& whole, const TensorShard& shard,
                                          const Parameter& p) {
  const ParameterCut cut = cut_of(whole, shard, p);
  const auto in = [&](int dimension, std::int64_t at) {
    if (cut.dimension != dimension) return true;
    for (const ParameterCut::Range& range : cut.ranges)
      if (at >= range.first && at < range.first + range.count) return true;
    return false;
  };
  std::vector<std::int64_t> out;
  for (std::int64_t row = 0; row < p.shape.front(); ++row)
    for (std::int64_t column = 0; column < columns_of(p); ++column)
      if (in(0, row) && in(1, column)) out.push_back(row * columns_of(p) + column);
  return out;
}

// Parts of a unit's parameters.
using Values = std::vector<std::vector<std::int64_t>>;

Values values_of(const Architecture& whole, const TensorShard& shard, const FlatUnit& unit) {
  Values out;
  for (const Parameter& p : unit.parameters) out.push_back(part_of_numbers(whole, shard, p));
  return out;
}

struct Counts {
  std::int64_t copied = 0, sent = 0;
};

void copy_box(const SharedBox& box, std::int64_t from_columns, std::int64_t to_columns,
              const std::vector<std::int64_t>& from, std::vector<std::int64_t>& to) {
  for (std::int64_t row = 0; row < box.rows; ++row) {
    for (std::int64_t column = 0; column < box.columns; ++column) {
      const auto source = (box.from.row + row) * from_columns + box.from.column + column;
      const auto target = (box.to.row + row) * to_columns + box.to.column + column;
      std::int64_t& place = to.at(static_cast<std::size_t>(target));
      EXPECT_EQ(place, kNothing) << "given twice";
      place = from.at(static_cast<std::size_t>(source));
    }
  }
}

// Gives every rank its part as the list says.
Counts expect_parts(const Architecture& whole, std::int64_t ranks, std::int64_t first,
                    std::int64_t wanted_ranks, std::int64_t most, bool lora) {
  const LoraShape adapters{.rank = lora ? 2 : 0, .targets = {std::string(kAllLinear)}};
  const auto layout = [&](const Architecture& a) {
    return lora ? lora_layout(a, Head::kLanguageModel, adapters)
                : flat_layout(a, Head::kLanguageModel);
  };
  const std::vector<TensorShard> wanted = wanted_parts(ranks, first, wanted_ranks);
  const std::vector<FlatUnit> units = layout(whole);
  const std::vector<FlatUnit> from = layout(*part_of(whole, {ranks, 0}, "actor"));
  const std::vector<FlatUnit> to = layout(*part_of(whole, {wanted_ranks, 0}, "actor"));
  Counts counts;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const FlatUnit& unit = units[u];
    std::vector<Values> have, get, want;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      have.push_back(values_of(whole, {ranks, rank}, unit));
      want.push_back(values_of(whole, wanted[static_cast<std::size_t>(rank)], unit));
      Values& empty = get.emplace_back(want.back());
      for (auto& values : empty) std::fill(values.begin(), values.end(), kNothing);
    }
    bool copies = true;
    for (const PartTransfer& transfer : part_transfers(whole, unit, wanted, most)) {
      const bool own = transfer.from == transfer.to;
      EXPECT_TRUE(copies || !own) << "copies come first";
      copies = own;
      (own ? counts.copied : counts.sent) += transfer.elements();
      std::int64_t widest = 0;
      for (const SharedBox& box : transfer.boxes) {
        widest = std::max(widest, box.columns);
        copy_box(box, columns_of(from[u].parameters[box.parameter]),
                 columns_of(to[u].parameters[box.parameter]),
                 have[static_cast<std::size_t>(transfer.from)][box.parameter],
                 get[static_cast<std::size_t>(transfer.to)][box.parameter]);
      }
      EXPECT_TRUE(own || transfer.elements() <= std::max(most, widest));
    }
    EXPECT_EQ(get, want) << unit.name;
  }
  return counts;
}

TEST(PartTransfers, EachRankGetsItsPartOfAnotherDivision) {
  for (const char* name : {"bloom", "gemma2", "gpt2", "gpt_neox", "opt_post_norm", "qwen2"}) {
    const Architecture whole = golden_architecture(name);
    for (const auto& [ranks, wanted] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {2, 1}, {4, 1}, {4, 2}, {2, 4}, {1, 4}, {1, 2}}) {
      for (std::int64_t first = 0; first < std::lcm(ranks, wanted); first += ranks) {
        SCOPED_TRACE(std::string(name) + " " + std::to_string(ranks) + " to " +
                     std::to_string(wanted) + " from " + std::to_string(first));
        for (const bool lora : {false, true}) {
          const Counts all = expect_parts(whole, ranks, first, wanted, 1 << 20, lora);
          const Counts small = expect_parts(whole, ranks, first, wanted, 50, lora);
          EXPECT_EQ(all.sent, small.sent);
          EXPECT_EQ(all.copied, small.copied);
          EXPECT_EQ(all.sent == 0, ranks == 1) << "a whole model has every part";
        }
      }
    }
  }
}

// Three key heads and six query heads, so that two ranks' heads are not multiples of three ranks'.
TEST(PartTransfers, SizesNeedNotDivideEachOther) {
  Architecture whole = golden_architecture("qwen2");
  whole.num_attention_heads = 12;
  whole.num_key_value_heads = 6;
  whole.intermediate_size = 48;
  whole.vocab_size = 36;
  for (const std::int64_t first : {0, 2, 4}) expect_parts(whole, 2, first, 3, 64, false);
  for (const std::int64_t first : {0, 3}) expect_parts(whole, 3, first, 2, 64, false);
}

TEST(PartTransfers, WhatARankHasStaysWithIt) {
  const Architecture whole = golden_architecture("qwen2");
  // Both want the whole: each sends the other its half of what is cut.
  const std::vector<FlatUnit> units = flat_layout(whole, Head::kLanguageModel);
  const std::vector<PartTransfer> block =
      part_transfers(whole, units[1], wanted_parts(2, 0, 1), 1 << 20);
  ASSERT_EQ(block.size(), 4U);
  EXPECT_EQ(block[0].from, block[0].to);
  EXPECT_EQ(block[1].from, block[1].to);
  EXPECT_EQ(std::pair(block[2].from, block[2].to), std::pair(std::int64_t{0}, std::int64_t{1}));
  EXPECT_EQ(std::pair(block[3].from, block[3].to), std::pair(std::int64_t{1}, std::int64_t{0}));
  EXPECT_EQ(block[2].elements(), block[3].elements());
  const TransferSizes sizes = transfer_sizes(whole, {units[1]}, 2, 1, 1 << 20);
  EXPECT_EQ(sizes.largest, block[2].elements());
  EXPECT_EQ(sizes.busiest, 2 * block[2].elements());
  EXPECT_EQ(transfer_sizes(whole, {units[1]}, 2, 1, 100).largest, 96) << "rows of 32 and 24";
}

TEST(PartTransfers, ARankTakesPartOnceInARound) {
  const Architecture whole = golden_architecture("qwen2");
  const std::vector<FlatUnit> units = flat_layout(whole, Head::kLanguageModel);
  // All to all of four ranks: six rounds of two pairs each.
  std::vector<PartTransfer> list = part_transfers(whole, units[1], wanted_parts(4, 0, 1), 1 << 20);
  std::erase_if(list, [](const PartTransfer& t) { return t.from == t.to; });
  ASSERT_EQ(list.size(), 12U);
  std::map<std::int64_t, std::int64_t> round;  // of a rank's next transfer
  std::int64_t rounds = 0;
  for (const PartTransfer& t : list) {
    const std::int64_t now = std::max(round[t.from], round[t.to]);
    round[t.from] = round[t.to] = now + 1;
    rounds = std::max(rounds, now + 1);
  }
  EXPECT_LE(rounds, 8);
}

}  // namespace
}  // namespace neap::spec
