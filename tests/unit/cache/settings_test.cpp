#include "cache/settings.h"

#include <gtest/gtest.h>

namespace neap::cache {
namespace {

Settings parsed(std::string_view text) {
  auto settings = Settings::parse(text);
  EXPECT_TRUE(settings.ok()) << text << ": " << settings.status().message();
  return settings.ok() ? *settings : Settings{};
}

TEST(Settings, EmptyTextGivesDefaults) {
  const Settings s = parsed("");
  EXPECT_EQ(s, Settings{});
  EXPECT_EQ(s.to_string(), "");
}

TEST(Settings, ReadsEveryKeyThatDecides) {
  const Settings s = parsed(
      " max_split_size_mb:128, garbage_collection_threshold : 0.6,expandable_segments:True,"
      "max_non_split_rounding_mb:64,per_process_memory_fraction:0.5,pinned_num_register_threads:8");
  EXPECT_EQ(s.max_split_size, 128_MiB);
  EXPECT_DOUBLE_EQ(s.garbage_collection_threshold, 0.6);
  EXPECT_TRUE(s.expandable_segments);
  EXPECT_EQ(s.max_non_split_rounding, 64_MiB);
  EXPECT_DOUBLE_EQ(s.memory_fraction, 0.5);
}

TEST(Settings, SegmentSizeMovesTheRoundingWhateverTheOrder) {
  EXPECT_EQ(parsed("large_segment_size_mb:64").max_non_split_rounding, 64_MiB);
  EXPECT_EQ(parsed("max_non_split_rounding_mb:30,large_segment_size_mb:64").max_non_split_rounding,
            30_MiB);
}

TEST(Settings, DivisionsInEveryForm) {
  const Settings all = parsed("roundup_power2_divisions:8");
  EXPECT_EQ(all.roundup_power2_divisions, (decltype(all.roundup_power2_divisions){
                                              8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8}));
  const Settings list = parsed("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]");
  EXPECT_EQ(list.roundup_power2_divisions, (decltype(all.roundup_power2_divisions){
                                               1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8}));
  const Settings gap = parsed("roundup_power2_divisions:[4:2,16:4],max_split_size_mb:64");
  EXPECT_EQ(gap.roundup_power2_divisions, (decltype(all.roundup_power2_divisions){
                                              2, 2, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(gap.max_split_size, 64_MiB);
}

TEST(Settings, RoundsAsPyTorchsHandbookSays) {
  EXPECT_EQ(Settings{}.round(1_B), 512_B);
  EXPECT_EQ(Settings{}.round(513_B), 1024_B);
  // 1200 with 4 divisions lies between 1024 and 2048: 1024, 1280, 1536, 1792.
  const Settings four = parsed("roundup_power2_divisions:4");
  EXPECT_EQ(four.round(1200_B), 1536_B) << "below 512 x 4 bytes the divisions do not apply";
  EXPECT_EQ(four.round(1200_KiB), 1280_KiB);
  EXPECT_EQ(four.round(1280_KiB), 1280_KiB);
  EXPECT_EQ(four.round(1281_KiB), 1536_KiB);
  EXPECT_EQ(four.round(2_MiB), 2_MiB);
}

TEST(Settings, SegmentSizes) {
  const Settings s;
  EXPECT_EQ(s.segment_size_for(1_MiB), 2_MiB);
  EXPECT_EQ(s.segment_size_for(1_MiB + 512_B), 20_MiB);
  EXPECT_EQ(s.segment_size_for(10_MiB - 512_B), 20_MiB);
  EXPECT_EQ(s.segment_size_for(10_MiB), 10_MiB);
  EXPECT_EQ(s.segment_size_for(11_MiB), 12_MiB);
}

TEST(Settings, TextSurvivesARoundTrip) {
  for (const char* text :
       {"expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", "large_segment_size_mb:64",
        "garbage_collection_threshold:0.6,per_process_memory_fraction:0.17",
        "max_split_size_mb:64,max_non_split_rounding_mb:128"}) {
    const Settings s = parsed(text);
    EXPECT_EQ(parsed(s.to_string()), s) << text << " became " << s.to_string();
  }
}

TEST(Settings, RefusesWhatPyTorchRefuses) {
  for (const char* text :
       {"max_split_size_mb", "max_split_size_mb:x", "max_split_size_mb:19", "unheard_of:1",
        "expandable_segments:true", "garbage_collection_threshold:1",
        "garbage_collection_threshold:0", "roundup_power2_divisions:3",
        "roundup_power2_divisions:[3:2]", "roundup_power2_divisions:[256:1",
        "roundup_power2_divisions:[>:1,256:2]", "roundup_power2_divisions:[]",
        "large_segment_size_mb:9", "max_split_size_mb:128 expandable_segments:True",
        "max_split_size_mb:99999999999999999999"}) {
    const auto settings = Settings::parse(text);
    EXPECT_FALSE(settings.ok()) << text;
    EXPECT_EQ(settings.status().code(), ErrorCode::kInvalidArgument) << text;
  }
}

TEST(Settings, OlderVersionsKnowFewerKeys) {
  const auto old = PolicyVersion::for_version("2.4.1");
  EXPECT_FALSE(Settings::parse("large_segment_size_mb:64", old).ok());
  EXPECT_TRUE(Settings::parse("expandable_segments:True", old).ok());
  const auto oldest = PolicyVersion::for_version("2.0.1");
  EXPECT_FALSE(Settings::parse("expandable_segments:True", oldest).ok());
  EXPECT_FALSE(Settings::parse("large_segment_size_mb:64", oldest).ok());
  EXPECT_EQ(needed_versions("max_split_size_mb:64,large_segment_size_mb:64"),
            std::vector<std::string>{"large_segment_size_mb needs PyTorch 2.11 or later."});
  EXPECT_FALSE(Settings::parse("max_split_size_mb:20", old).ok());
  EXPECT_TRUE(Settings::parse("max_split_size_mb:21", old).ok());
  EXPECT_TRUE(Settings::parse("max_split_size_mb:20").ok());
  EXPECT_TRUE(PolicyVersion::for_version("2.13.0+cu130").private_pool_reclaims);
  EXPECT_FALSE(PolicyVersion::for_version("2.11.0+cu130").private_pool_reclaims);
  const auto ascend = PolicyVersion::for_version("ascend");
  EXPECT_EQ(ascend.padding, 32_B);
  EXPECT_FALSE(ascend.use_on_oom_first);
  EXPECT_FALSE(Settings::parse("large_segment_size_mb:64", ascend).ok());
}

TEST(Settings, LintNamesConflicts) {
  EXPECT_TRUE(lint({}, false).empty());
  const auto both = lint(parsed("max_split_size_mb:128,expandable_segments:True"), false);
  ASSERT_FALSE(both.empty());
  EXPECT_NE(both[0].find("without bound"), std::string::npos);
  EXPECT_EQ(lint(parsed("garbage_collection_threshold:0.6"), false).size(), 1u);
}

}  // namespace
}  // namespace neap::cache
