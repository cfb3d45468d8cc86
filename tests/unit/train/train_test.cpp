#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/file.h"
#include "base/random.h"
#include "base/status.h"
#include "ops/aten_ops.h"
#include "parallel/communicator.h"
#include "step/pipeline/phases.h"
#include "train/background_save.h"
#include "train/checkpoint.h"
#include "train/checkpoint_files.h"
#include "train/optimizer.h"
#include "train/sequences.h"

namespace neap::train {
namespace {

namespace fs = std::filesystem;

void check_whole(const std::filesystem::path& folder) {
  check_files(folder);
}

class Folder : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() /
            ("neap-train-" + std::to_string(::getpid()) + "-" +
             ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  fs::path write(const std::string& name, const std::string& text) {
    std::ofstream(root_ / name) << text;
    return root_ / name;
  }
  template <class F>
  static std::string message(F f) {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  fs::path root_;
};

TEST(Random, StreamsAreUniformAndDistinct) {
  double sum = 0;
  float largest = 0;
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const float u = uniform(random_key({1, 2}), i);
    ASSERT_GE(u, 0);
    largest = std::max(largest, u);
    sum += static_cast<double>(u);
  }
  EXPECT_LT(largest, 1.0F);
  EXPECT_NEAR(sum / 100000, 0.5, 0.005);
  EXPECT_NE(random_key({1, 2}), random_key({2, 1}));
  EXPECT_NE(uniform(random_key({1}), 0), uniform(random_key({2}), 0));
}

TEST(LearningRate, WarmsUpThenFollowsItsSchedule) {
  spec::OptimizerConfig config;
  config.lr = 1;
  config.lr_warmup_steps = 4;
  EXPECT_DOUBLE_EQ(learning_rate(config, 0, 12), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(config, 3, 12), 1);
  EXPECT_DOUBLE_EQ(learning_rate(config, 11, 12), 1);
  config.lr_schedule = "linear";
  EXPECT_DOUBLE_EQ(learning_rate(config, 8, 12), 0.5);
  config.lr_schedule = "cosine";
  EXPECT_NEAR(learning_rate(config, 8, 12), 0.5, 1e-12);
  EXPECT_NEAR(learning_rate(config, 12, 12), 0, 1e-12);
  config.min_lr_ratio = 0.1;
  EXPECT_NEAR(learning_rate(config, 8, 12), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(config, 12, 12), 0.1, 1e-12);
  config.lr_schedule = "linear";
  EXPECT_NEAR(learning_rate(config, 10, 12), 0.325, 1e-12);
  config.lr_warmup_steps_ratio = 0.5;
  EXPECT_DOUBLE_EQ(learning_rate(config, 0, 12), 0.25) << "the number of steps comes first";
  config.lr_warmup_steps = 0;
  config.lr_warmup_steps_ratio = 0.15;  // of 12: 2 steps
  EXPECT_DOUBLE_EQ(learning_rate(config, 0, 12), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(config, 1, 12), 1);
  config.lr_schedule = "step";
  EXPECT_THROW((void)learning_rate(config, 8, 12), Error);
}

TEST(Sequences, PutOutputsBeforeTheTokensTheyPredict) {
  const Sequences s = make_sequences({{1, 2, 3}, {4}}, {{5, 6}, {7, 8, 9}}, {6, 3, 0});
  EXPECT_TRUE(
      s.tokens.equal(at::tensor({1, 2, 3, 5, 6, 0, 4, 7, 8, 9, 0, 0}, at::kInt).view({2, 6})));
  EXPECT_TRUE(s.mask.equal(at::tensor({1.F, 1.F, 0.F, 1.F, 1.F, 1.F}).view({2, 3})));
  // Row 2 (token 3) predicts 5, row 3 predicts 6; in the second sequence rows 6, 7, 8.
  ops::AtenOps ops(at::kCPU);
  const step::DeviceBatch<ops::AtenOps> all(ops, s, 0, 2, step::Dtype::kFloat32);
  EXPECT_TRUE(all.response_rows().equal(at::tensor({2, 3, 4, 6, 7, 8}, at::kLong)));
  EXPECT_TRUE(all.last_token_rows().equal(at::tensor({4, 9}, at::kLong)));
  const step::DeviceBatch<ops::AtenOps> second(ops, s, 1, 1, step::Dtype::kFloat32);
  EXPECT_TRUE(second.response_rows().equal(at::tensor({0, 1, 2}, at::kLong)));
  EXPECT_THROW((void)make_sequences({{1, 2}}, {{1, 2, 3, 4}}, {6, 3, 0}), Error);
  EXPECT_THROW((void)make_sequences({{}}, {{1}}, {6, 3, 0}), Error);
}

TEST(Sequences, ScoresAreReadBeforePadding) {
  // Texts end with 9, which one model has as its padding, too.
  const auto columns = [](std::int64_t pad) {
    Sequences s = make_sequences({{1, 2, 3}, {4}, {9}}, {{5, 9}, {7, 8, 6}, {9}}, {6, 3, 0});
    const at::Tensor before = s.last.clone();
    const Sequences copy = s;
    read_scores_before_padding(s, pad);
    EXPECT_TRUE(copy.last.equal(before));
    return s.last;
  };
  EXPECT_TRUE(columns(-1).equal(at::tensor({4, 3, 1}, at::kLong)));
  EXPECT_TRUE(columns(0).equal(at::tensor({4, 3, 1}, at::kLong)));
  EXPECT_TRUE(columns(9).equal(at::tensor({3, 3, 0}, at::kLong)));
}

TEST_F(Folder, CheckpointsAppearWholeAndOldOnesGo) {
  for (const std::int64_t step : {1, 2, 3}) {
    CheckpointWriter writer(root_, step);
    fs::create_directory(writer.folder() / "actor");
    std::ofstream(writer.folder() / "actor" / "weights") << step;
    writer.commit({2, {}, {}});
  }
  EXPECT_FALSE(fs::exists(root_ / "global_step_1"));
  EXPECT_TRUE(fs::exists(root_ / "global_step_2"));
  const auto found = find_checkpoint(root_, "auto", {}, check_whole);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 3);
  EXPECT_EQ(value_or_throw(read_file(root_ / "latest" / "actor" / "weights")), "3");
  EXPECT_FALSE(find_checkpoint(root_, "disable", {}, check_whole));
  EXPECT_EQ(find_checkpoint(root_, "x/", root_ / "latest/", check_whole)->step, 3);
  EXPECT_EQ(find_checkpoint(root_, "x/", root_ / "global_step_2", check_whole)->step, 2);
  EXPECT_NE(message([&] {
              (void)find_checkpoint(root_, "x/", root_, check_whole);
            }).find("not a checkpoint folder"),
            std::string::npos);
}

TEST_F(Folder, TheBestCheckpointStaysAndItsLinkPointsToIt) {
  const auto write = [&](std::int64_t step, std::optional<std::int64_t> best) {
    CheckpointWriter writer(root_, step);
    std::ofstream(writer.folder() / "weights") << step;
    writer.commit({1, best, {}});
  };
  const auto best = [&] { return value_or_throw(read_file(root_ / "best" / "weights")); };
  write(1, {});
  EXPECT_FALSE(fs::exists(fs::symlink_status(root_ / "best")));
  write(2, 2);
  write(3, 2);
  write(4, 2);
  EXPECT_EQ(best(), "2");
  EXPECT_FALSE(fs::exists(root_ / "global_step_3"));
  write(5, 5);
  EXPECT_EQ(best(), "5");
  EXPECT_FALSE(fs::exists(root_ / "global_step_2"));
  EXPECT_FALSE(point_best(root_, 2)) << "is gone";
  EXPECT_EQ(best(), "5");
  EXPECT_TRUE(point_best(root_, std::nullopt));
  EXPECT_FALSE(fs::exists(fs::symlink_status(root_ / "best")));
  EXPECT_TRUE(fs::exists(root_ / "global_step_5"));
  fs::create_directory(root_ / "best");  // a user's
  EXPECT_TRUE(point_best(root_, 5));
  EXPECT_TRUE(fs::is_directory(fs::symlink_status(root_ / "best")));
}

TEST_F(Folder, ACheckpointIsCommittedInTheBackgroundAndItsFailureIsNotLost) {
  const auto ranks = parallel::make_single();
  BackgroundSave commit(*ranks);
  for (const std::int64_t step : {1, 2, 3}) {
    auto writer = std::make_unique<CheckpointWriter>(root_, step);
    std::ofstream(writer->folder() / "weights") << step;
    commit.start(SavedFiles(*ranks), std::move(writer), {2, {}, {}});
    if (step < 3) commit.wait();
  }
  commit.wait();
  EXPECT_EQ(find_checkpoint(root_, "auto", {}, check_whole)->step, 3);
  EXPECT_FALSE(fs::exists(root_ / "global_step_1"));
  auto writer = std::make_unique<CheckpointWriter>(root_, 4);
  fs::remove_all(writer->folder());
  commit.start(SavedFiles(*ranks), std::move(writer), {2, {}, {}});
  EXPECT_NE(message([&] {
              while (true) commit.poll();
            }).find("global_step_4"),
            std::string::npos);
  commit.wait();  // said once
  EXPECT_EQ(find_checkpoint(root_, "auto", {}, check_whole)->step, 3);
}

TEST_F(Folder, AnUnfinishedCheckpointIsInvisibleAndLeavesNothing) {
  {
    CheckpointWriter writer(root_, 1);
    writer.commit({});
  }
  {
    const CheckpointWriter writer(root_, 2);
    std::ofstream(writer.folder() / "half") << "x";
  }
  fs::create_directory(root_ / "global_step_7.tmp-1");  // a killed writer's
  EXPECT_EQ(find_checkpoint(root_, "auto", {}, check_whole)->step, 1);
  {
    CheckpointWriter writer(root_, 1);  // the same step again
    writer.commit({});
  }
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(root_)) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"global_step_1", "latest",
                                          "latest_checkpointed_iteration.txt"}));
  fs::remove_all(root_ / "global_step_1");
  EXPECT_NE(
      message([&] { (void)find_checkpoint(root_, "auto", {}, check_whole); }).find("is not there"),
      std::string::npos);
  write("latest_checkpointed_iteration.txt", "soon");
  EXPECT_THROW((void)find_checkpoint(root_, "auto", {}, check_whole), Error);
}

TEST_F(Folder, WithoutThePointerTheNewestWholeCheckpointIsFound) {
  for (const std::int64_t step : {9, 10, 11}) {
    CheckpointWriter writer(root_, step);
    std::ofstream(writer.folder() / "state") << step;
    writer.commit({});
  }
  EXPECT_EQ(find_checkpoint(root_, "auto", {}, check_whole)->warning, "");
  const fs::path pointer = root_ / "latest_checkpointed_iteration.txt";
  fs::remove(pointer);
  const auto found = find_checkpoint(root_, "auto", {}, check_whole);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 11);
  EXPECT_NE(found->warning.find("latest_checkpointed_iteration.txt is missing"), std::string::npos);
  write(pointer.filename(), "12");
  EXPECT_EQ(find_checkpoint(root_, "auto", {}, check_whole)->step, 11);
  write(pointer.filename(), "1x");
  EXPECT_EQ(find_checkpoint(root_, "auto", {}, check_whole)->step, 11);
  std::ofstream(root_ / "global_step_11/state") << "damaged";
  EXPECT_EQ(find_checkpoint(root_, "auto", {}, check_whole)->step, 10);
  EXPECT_NE(
      find_checkpoint(root_, "auto", {}, check_whole)->warning.find("global_step_11 is damaged"),
      std::string::npos);
  for (const char* step : {"9", "10"})
    std::ofstream(root_ / (std::string("global_step_") + step) / "state") << "damaged";
  EXPECT_NE(message([&] {
              (void)find_checkpoint(root_, "auto", {}, check_whole);
            }).find("no whole checkpoint"),
            std::string::npos);
}

TEST_F(Folder, CheckpointsOfOthersStay) {
  Retention keep{
      1, {}, [](const fs::path& folder) { return folder.filename() != "global_step_2"; }};
  for (const std::int64_t step : {1, 2, 3, 4}) CheckpointWriter(root_, step).commit(keep);
  std::set<std::int64_t> steps;
  for (const FoundCheckpoint& each : all_checkpoints(root_)) steps.insert(each.step);
  EXPECT_EQ(steps, (std::set<std::int64_t>{2, 4}));
}

TEST_F(Folder, ACheckpointIsCommittedWhereItsRootWasMovedTo) {
  const fs::path root = root_ / "run", moved = root_ / "moved";
  CheckpointWriter writer(root, 3);
  std::ofstream(writer.folder() / "weights") << "w";
  fs::rename(root, moved);
  fs::create_directory(root);  // another run's
  writer.commit({});
  EXPECT_TRUE(fs::exists(moved / "latest/weights"));
  EXPECT_EQ(find_checkpoint(moved, "auto", {}, check_whole)->step, 3);
  EXPECT_TRUE(fs::is_empty(root));
  CheckpointWriter second(moved, 4);
  fs::remove_all(second.folder());
  const std::string failure = message([&] { second.commit({}); });
  EXPECT_NE(failure.find((moved / "global_step_4.tmp").string()), std::string::npos) << failure;
  EXPECT_EQ(failure.find("/proc/"), std::string::npos) << failure;
}

TEST_F(Folder, AFolderThatIsRemovedBeforeTheCommitIsNamed) {
  for (const bool whole_root : {false, true}) {
    const fs::path root = root_ / "run";
    CheckpointWriter writer(root, 5);
    std::ofstream(writer.folder() / "weights") << "w";
    fs::remove_all(whole_root ? root : writer.folder());
    try {
      writer.commit({});
      ADD_FAILURE() << "committed";
    } catch (const Error& e) {
      EXPECT_EQ(e.status().code(), ErrorCode::kIo);
      EXPECT_EQ(std::string(e.what()),
                (root / "global_step_5.tmp-").string() + std::to_string(::getpid()) +
                    " was removed while the checkpoint of step 5 was written in it, and this "
                    "checkpoint was not made");
    }
  }
}

TEST_F(Folder, OnlyFoldersOfWritersAreRemoved) {
  const std::set<std::string> kept = {"global_step_1.tmp-mine",  "global_step_x.tmp-1",
                                      "global_step_1.tmp-",      "other.tmp-1",
                                      "global_step_1.tmp-1.bak", "latest.tmp-1"};
  for (const std::string& name : kept) fs::create_directory(root_ / name);
  for (const char* name : {"global_step_1.tmp-12", "global_step_3.tmp-4"})
    fs::create_directory(root_ / name);
  fs::create_directory(root_ / "global_step_4.replaced");  // returns: it has its place no more
  fs::create_directories(root_ / "global_step_5");
  fs::create_directories(root_ / "global_step_5.replaced");
  { const CheckpointWriter writer(root_, 2); }
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(root_)) names.insert(entry.path().filename());
  std::set<std::string> expected = kept;
  expected.insert({"global_step_4", "global_step_5"});
  EXPECT_EQ(names, expected);
}

TEST_F(Folder, ACheckpointThatTheCallerDoesNotTakeForWholeIsLeftOut) {
  for (const char* step : {"1", "2"})
    fs::create_directory(root_ / (std::string("global_step_") + step));
  const auto found = find_checkpoint(root_, "auto", {}, [](const fs::path& folder) {
    if (folder.filename() == "global_step_2") throw Error(ErrorCode::kCorrupt, "it has no state");
  });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 1);
  EXPECT_NE(found->warning.find("global_step_2 is damaged: it has no state"), std::string::npos);
}

TEST(MicroBatches, AllHaveOneSizeAndEachRowIsFreshOnce) {
  ops::AtenOps ops(at::kCPU);
  for (const std::int64_t rows : {1, 3, 4, 5, 8, 11}) {
    std::vector<int> fresh(static_cast<std::size_t>(rows), 0);
    std::int64_t all_fresh = 0;
    step::for_each_micro_batch(ops, step::padded_cuts(rows, 4), [&](const step::MicroBatch& batch) {
      EXPECT_EQ(batch.count, std::min<std::int64_t>(rows, 4));
      ASSERT_LE(batch.first + batch.count, rows);
      all_fresh += batch.fresh();
      for (std::int64_t i = batch.seen; i < batch.count; ++i) {
        ++fresh[static_cast<std::size_t>(batch.first + i)];
      }
    });
    EXPECT_EQ(fresh, std::vector<int>(static_cast<std::size_t>(rows), 1)) << rows << " rows";
    EXPECT_EQ(all_fresh, rows);
  }
  step::for_each_micro_batch(ops, step::padded_cuts(0, 4),
                             [](const auto&) { FAIL() << "there is nothing"; });
}

}  // namespace
}  // namespace neap::train
