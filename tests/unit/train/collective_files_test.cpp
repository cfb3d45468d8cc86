// Files that ranks write together are those of one rank, and a failure of one rank is one of all.
#include "unit/train/files_of_ranks.h"

namespace neap::train {
namespace {

using Told = std::vector<std::string>;

TEST_F(FilesOfRanks, AreThoseOfOneRank) {
  write_by_one();
  const std::string one = contents();
  for (const weights::TensorFiles::File& file : shards_.files) fs::remove(file.path);
  EXPECT_EQ(write(3, [&](int rank) { return parts_of(rank); }), Told(3));
  EXPECT_EQ(contents(), one);
  // The ranks that have something need not be the first, nor all.
  EXPECT_EQ(
      write(4, [&](int rank) { return rank == 0 ? std::vector<FilePart>() : parts_of(rank - 1); }),
      Told(4));
  EXPECT_EQ(contents(), one);
  EXPECT_EQ(files(), 3u) << "with the index";
}

TEST_F(FilesOfRanks, FailOnEveryRankIfOneFailsAndLeaveTheOldFile) {
  write_by_one();
  const std::string old = contents();
  tensors_[0].neg_();
  for (int failing = 0; failing < 3; ++failing) {
    Told expected(3, "-");
    expected[static_cast<std::size_t>(failing)] = "made to fail";
    EXPECT_EQ(write(3,
                    [&](int rank) {
                      if (rank == failing) throw Error(ErrorCode::kIo, "made to fail");
                      return parts_of(rank);
                    }),
              expected);
    EXPECT_EQ(contents(), old);
    EXPECT_EQ(files(), 3u) << "with the index";
  }
}

TEST_F(FilesOfRanks, HaveEveryElementOnce) {
  const auto without = [&](int rank) {
    std::vector<FilePart> parts = parts_of(rank);
    if (rank == 1) parts.pop_back();
    return parts;
  };
  const Told lacking = write(3, without);
  EXPECT_NE(lacking[0].find("\"tensor.2\" was given 240 bytes too few"), std::string::npos)
      << lacking[0];
  EXPECT_EQ(lacking[2], "-");
}

TEST_F(FilesOfRanks, CannotBeMadeWithoutAFolder) {
  fs::remove_all(root_);
  const Told told = write(2, [&](int rank) { return parts_of(rank); });
  EXPECT_NE(told[0].find(root_.string()), std::string::npos) << told[0];
  EXPECT_EQ(told[1], "-");
}

}  // namespace
}  // namespace neap::train
