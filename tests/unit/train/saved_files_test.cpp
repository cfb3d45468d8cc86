// Checkpoints that are written while the models change are those of the moment when they were taken.
#include "train/saved_files.h"

#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "train/background_save.h"
#include "train/checkpoint_files.h"
#include "unit/train/copies_memory.h"
#include "unit/train/files_of_ranks.h"

namespace neap::train {
namespace {

using testing::CopiesMemory;

class FilesSavedByRanks : public FilesOfRanks {
 protected:
  /// Takes this rank's parts, and then changes them as the next step would.
  void take(parallel::Communicator& ranks, SavedFiles& saved, const weights::TensorFiles& files,
            std::vector<FilePart> parts) const {
    saved.add(
        CollectiveFiles(ranks, files, {{"format", "pt"}}, weights::Sync::kByCaller),
        [&](const PartVisit& visit) { visit(parts); },
        [files] { weights::finish_model_files(files); });
    for (FilePart& part : parts) part.values.neg_();
  }
};

TEST_F(FilesSavedByRanks, AreThoseOfTheMomentWithAndWithoutACopy) {
  write_by_one();
  const std::string one = contents();
  for (const Bytes budget : {1_GiB, 2_MiB}) {
    testing::on_ranks(3, [&](parallel::Communicator& ranks) {
      CopiesMemory memory(budget);
      Bytes held;
      for (int save = 0; save < 2; ++save) {
        SavedFiles saved(ranks, memory.copies.get());
        take(ranks, saved, shards_, parts_of(ranks.rank()));
        EXPECT_EQ(saved.copied(), budget > 2_MiB);
        EXPECT_EQ(saved.without_copy().ok(), budget > 2_MiB);
        saved.commit(2);
        if (save == 0) held = memory.copies->bytes();
        EXPECT_EQ(memory.copies->bytes(), held) << "is kept";
      }
    });
    EXPECT_EQ(contents(), one) << budget.count();
    for (const weights::TensorFiles::File& file : shards_.files) fs::remove(file.path);
  }
}

// All ranks have to write alike: a rank without room has no copy, so none has.
TEST_F(FilesSavedByRanks, HaveCopiesOnAllRanksOrOnNone) {
  testing::on_ranks(2, [&](parallel::Communicator& ranks) {
    CopiesMemory memory(ranks.first() ? 1_GiB : 2_MiB);
    SavedFiles saved(ranks, memory.copies.get());
    take(ranks, saved, shards_,
         ranks.first() ? std::vector<FilePart>{slice(0, 0, 9), slice(3, 0, 5), columns(0, 7)}
                       : std::vector<FilePart>{slice(0, 9, 9 << 20), slice(1, 0, 9 << 20)});
    EXPECT_FALSE(saved.copied());
    EXPECT_EQ(saved.without_copy().message() == "another rank has no room", ranks.first())
        << saved.without_copy().message();
    saved.commit(2);
  });
}

TEST_F(FilesSavedByRanks, InTheBackgroundFailOnAllRanksAndTheNextOnesFollow) {
  write_by_one();
  const std::string one = contents();
  infos_[0].weights = true;  // may not be NaN
  const fs::path root = root_ / "run";
  testing::on_ranks(3, [&](parallel::Communicator& ranks) {
    CopiesMemory memory;
    BackgroundSave background(ranks);
    const auto start = [&](std::int64_t step, bool fails) {
      background.wait();
      auto writer = ranks.first() ? std::make_unique<CheckpointWriter>(root, step) : nullptr;
      const auto files = weights::model_files(writer ? writer->folder() : root_, infos_, kMaxShard);
      std::vector<FilePart> parts = parts_of(ranks.rank());
      if (fails && ranks.rank() == 1) parts[0].values[7] = std::numeric_limits<float>::quiet_NaN();
      SavedFiles saved(ranks, memory.copies.get());
      take(ranks, saved, files, parts);
      background.start(std::move(saved), std::move(writer), {});
    };
    start(1, false);
    while (ranks.any(!fs::exists(checkpoint_folder(root, 1)))) background.poll();
    std::string told;
    try {
      start(2, true);
      background.wait();
    } catch (const parallel::CollectiveError& e) {
      told = e.mine() ? e.what() : "-";
    }
    if (ranks.rank() == 1) {
      EXPECT_NE(told.find("\"tensor.0\" has values that are not finite"), std::string::npos)
          << told;
    } else {
      EXPECT_EQ(told, "-");
    }
    start(4, false);
    background.wait();
  });
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(root)) left.insert(entry.path().filename());
  EXPECT_EQ(left, (std::set<std::string>{"global_step_1", "global_step_4", "latest",
                                         "latest_checkpointed_iteration.txt"}));
  for (const std::int64_t step : {1, 4}) {
    const fs::path folder = checkpoint_folder(root, step);
    check_files(folder);
    std::string saved;
    for (const weights::TensorFiles::File& file : shards_.files)
      saved += value_or_throw(read_file(folder / file.path.filename()));
    EXPECT_EQ(saved, one);
  }
}

}  // namespace
}  // namespace neap::train
