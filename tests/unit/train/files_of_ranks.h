// Files of four tensors that ranks write together: parts of slices, columns and pieces.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/format.h"
#include "base/status.h"
#include "parallel/run_collectively.h"
#include "train/collective_files.h"
#include "unit/tensor/thread_ranks.h"
#include "weights/tensor_io.h"

namespace neap::train {

namespace fs = std::filesystem;
using weights::PartRun;

// The first tensor is in a file of its own.
inline constexpr Bytes kMaxShard = 40_MiB;

class FilesOfRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() /
            format("neap-collective-{}-{}", ::getpid(),
                   ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(root_);
    // Pieces have 4 Mi float32 and 8 Mi bfloat16.
    tensors_ = {at::arange(9 << 20, at::kFloat), at::arange(9 << 20, at::kFloat).to(at::kBFloat16),
                at::arange(60 * 7, at::kFloat), at::arange(5, at::kFloat)};
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      infos_.push_back({format("tensor.{}", i),
                        weights::dtype_name(tensors_[i].scalar_type()),
                        {tensors_[i].numel()}});
    shards_ = weights::model_files(root_, infos_, kMaxShard);
    ASSERT_EQ(shards_.files.size(), 2u);
  }
  void TearDown() override { fs::remove_all(root_); }

  /// The bytes of all files, one after another.
  [[nodiscard]] std::string contents() const {
    std::string out;
    for (const weights::TensorFiles::File& file : shards_.files)
      out += value_or_throw(read_file(file.path));
    return out;
  }
  [[nodiscard]] std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(root_), {}));
  }
  /// Elements [first, end) as a rank keeps them.
  [[nodiscard]] FilePart slice(std::size_t tensor, std::int64_t first, std::int64_t end) const {
    return {tensor, tensors_[tensor].slice(0, first, end).clone(), {{0, first, end - first}}};
  }
  /// Columns [first, end) of the third tensor (60, 7), in front of them three elements that no file has.
  [[nodiscard]] FilePart columns(std::int64_t first, std::int64_t end) const {
    const std::int64_t count = end - first;
    const at::Tensor part = tensors_[2].view({60, 7}).slice(1, first, end).reshape({-1});
    FilePart out{2, at::cat({at::full({3}, -1.0F), part}), {}};
    for (std::int64_t row = 0; row < 60; ++row)
      out.runs.push_back({3 + row * count, row * 7 + first, count});
    return out;
  }
  /// Every rank writes its parts(rank); what it caught: a message, "-" that of another rank, "" none.
  std::vector<std::string> write(int ranks,
                                 const std::function<std::vector<FilePart>(int rank)>& parts) {
    std::vector<std::string> told(static_cast<std::size_t>(ranks));
    testing::on_ranks(ranks, [&](parallel::Communicator& communicator) {
      try {
        CollectiveFiles files(communicator, shards_, {{"format", "pt"}}, weights::Sync::kByCaller);
        files.write([&](const PartVisit& visit) { visit(parts(communicator.rank())); });
        files.commit();
      } catch (const parallel::CollectiveError& e) {
        told[static_cast<std::size_t>(communicator.rank())] = e.mine() ? e.what() : "-";
      }
    });
    return told;
  }
  void write_by_one() {
    weights::ShardedWriter writer(root_, infos_, kMaxShard);
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      writer.write(
          i, 0,
          {static_cast<const std::byte*>(tensors_[i].const_data_ptr()), tensors_[i].nbytes()});
    writer.commit();
  }
  /// The parts of one of three ranks: cuts within and between pieces, parts of rows, a tensor of one rank.
  [[nodiscard]] std::vector<FilePart> parts_of(int rank) const {
    constexpr std::int64_t kMi = 1 << 20;
    if (rank == 0)
      return {slice(0, 0, 4 * kMi), slice(1, 0, 4 * kMi), columns(0, 2), slice(3, 0, 5)};
    if (rank == 1)
      return {slice(0, 4 * kMi, 9 * kMi - 1), slice(1, 4 * kMi, 8 * kMi + 3), columns(2, 3)};
    return {slice(0, 9 * kMi - 1, 9 * kMi), slice(1, 8 * kMi + 3, 9 * kMi), columns(3, 7)};
  }

  fs::path root_;
  std::vector<at::Tensor> tensors_;
  std::vector<weights::TensorInfo> infos_;
  weights::TensorFiles shards_;
};

}  // namespace neap::train
