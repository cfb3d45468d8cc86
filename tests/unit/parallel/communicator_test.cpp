#include "parallel/communicator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <numeric>
#include <vector>

#include "base/status.h"
#include "parallel/batch_sharder.h"
#include "parallel/mpi.h"
#include "parallel/run_collectively.h"

namespace neap::parallel {
namespace {

using ::testing::ElementsAre;

TEST(Single, EveryCollectiveIsACopyAtMost) {
  const auto one = make_single();
  EXPECT_EQ(one->size(), 1);
  EXPECT_TRUE(one->first());
  const at::Tensor t = at::arange(6, at::kFloat);
  one->all_reduce(t, Reduce::kMax);
  EXPECT_TRUE(t.equal(at::arange(6, at::kFloat)));
  const at::Tensor out = at::empty({6});
  one->all_gather(out, t);
  EXPECT_TRUE(out.equal(t));
  one->reduce_scatter(t, {6});
  one->all_gather(t, {6});
  one->broadcast(t, 0);
  one->barrier();
  EXPECT_TRUE(t.equal(at::arange(6, at::kFloat)));
  const at::Tensor shifted = at::empty({6});
  one->wait_for(one->begin_shift(t, shifted));
  EXPECT_TRUE(shifted.equal(t));
  EXPECT_EQ(one->sum(2.5), 2.5);
  EXPECT_TRUE(one->any(true));
  EXPECT_FALSE(one->any(false));
}

TEST(Single, RefusesWhatDoesNotFit) {
  const auto one = make_single();
  EXPECT_THROW(one->all_reduce(at::zeros({4, 4}).t().slice(0, 0, 2)), Error);
  EXPECT_THROW(one->all_reduce(at::zeros({2}, at::kBool)), Error);
  EXPECT_THROW(one->all_gather(at::zeros({5}), at::zeros({4})), Error);
  EXPECT_THROW(one->all_gather(at::zeros({4}, at::kDouble), at::zeros({4})), Error);
  EXPECT_THROW(one->broadcast(at::zeros({2}), 1), Error);
  for (const std::vector<std::int64_t>& parts :
       std::vector<std::vector<std::int64_t>>{{}, {3}, {4, 0}, {5, -1}}) {
    EXPECT_THROW(one->reduce_scatter(at::zeros({4}), parts), Error);
    EXPECT_THROW(one->all_gather(at::zeros({4}), parts), Error);
  }
  EXPECT_THROW(one->all_gather(at::zeros({2, 2}), {4}), Error);
  EXPECT_THROW((void)one->begin_shift(at::zeros({4}), at::zeros({3})), Error);
}

TEST(Together, AloneExceptionsPassAsTheyAre) {
  const auto one = make_single();
  EXPECT_THROW(run_collectively(*one, [] { throw std::out_of_range("x"); }), std::out_of_range);
}

TEST(Connect, CpuRanksWithoutMpiAreToldHow) {
  Environment environment;
  environment.launcher = Launcher::kTorchrun;
  environment.size = 3;
  try {
    (void)connect(environment, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(e.what(), ::testing::HasSubstr("mpirun -n 3"));
  }
}

// A communicator of which only rank and size are asked.
std::unique_ptr<Communicator> rank_of(int rank, int size) {
  static const NeapMpi kNone = [] {
    NeapMpi table{};
    table.abi = NEAP_MPI_ABI;
    table.abort = [](int) {};
    table.finish = [] { return 0; };
    return table;
  }();
  return make_mpi(kNone, rank, size, 1024, 1);
}

// Of three ranks the last one does not come; a group of them shares the failure.
TEST(Mpi, AfterATimeoutEveryCallFailsAtOnceAndSaysWhoIsMissing) {
  static int barriers;
  barriers = 0;
  static const NeapMpi kLate = [] {
    NeapMpi table{};
    table.abi = NEAP_MPI_ABI;
    table.split = [](int, int, int* result) { return *result = 1, 0; };
    table.all_to_all = [](int, const void*, const int*, const int*, void*, const int*, const int*) {
      return NEAP_MPI_TIMED_OUT;
    };
    table.all_gather = [](int, void*, const int*, const int*) { return 0; };
    table.barrier = [](int) { return ++barriers, 0; };
    table.missing = [](char* missing) { missing[0] = missing[1] = 0, missing[2] = 1; };
    table.show_life = [] { return 0; };
    table.finish = [] { return 0; };
    return table;
  }();
  const auto ranks = make_mpi(kLate, 1, 3, 1024, 20);
  ranks->show_life();
  ranks->barrier();
  EXPECT_EQ(barriers, 1);
  const std::string why =
      "Rank 1 waited 20 s in all_reduce for rank 2 (actor_rollout_ref.nccl_timeout)";
  const auto status_of_call = [&](auto call) { return status_of([&] { call(); }); };
  for (int i = 0; i < 2; ++i) {
    const Status status = status_of_call([&] { ranks->all_reduce(at::ones({4})); });
    EXPECT_EQ(status.code(), ErrorCode::kTimeout);
    EXPECT_EQ(status.message(), why);
  }
  EXPECT_EQ(status_of_call([&] { ranks->barrier(); }).message(), why);
  EXPECT_EQ(barriers, 1);
  ranks->show_life();  // nobody hears it, and nothing fails
}

TEST(BatchSharder, DealsRowsOutSoThatMiniBatchesStayTogether) {
  const auto a = rank_of(0, 2);
  const auto b = rank_of(1, 2);
  const std::vector<int> batch = {10, 11, 12, 13, 14, 15, 16, 17};
  EXPECT_THAT(BatchSharder(*a).of(batch), ElementsAre(10, 12, 14, 16));
  EXPECT_THAT(BatchSharder(*b).of(batch), ElementsAre(11, 13, 15, 17));
  EXPECT_EQ(BatchSharder(*b).global(2), 5U);
  // The first mini-batch of four is the first half of each share.
  const std::vector<int> mini(batch.begin(), batch.begin() + 4);
  EXPECT_THAT(BatchSharder(*a).of(mini), ElementsAre(10, 12));
  EXPECT_THAT(BatchSharder(*b).of(mini), ElementsAre(11, 13));
}

TEST(BatchSharder, UnevenBatchesLeaveNothingOutAndPaddedOnesRepeatTheEnd) {
  const auto a = rank_of(0, 3);
  const auto c = rank_of(2, 3);
  const std::vector<int> batch = {0, 1, 2, 3};
  EXPECT_THAT(BatchSharder(*a).of(batch), ElementsAre(0, 3));
  EXPECT_THAT(BatchSharder(*c).of(batch), ElementsAre(2));
  EXPECT_THAT(BatchSharder(*a).of_padded(batch), ElementsAre(0, 3));
  EXPECT_THAT(BatchSharder(*c).of_padded(batch), ElementsAre(2, 3));
  EXPECT_THAT(BatchSharder(*c).of_padded(std::vector<int>{7}), ElementsAre(7));
}

// A copy of the model is a rank along data and one along context: its prompts are dealt twice.
TEST(BatchSharder, RowsThatAreDealtOnHaveTheirPlaceInTheBatch) {
  for (const int data : {1, 2, 3}) {
    for (const int context : {1, 2, 4}) {
      for (const std::size_t rows : {1U, 7U, 12U, 24U}) {
        std::vector<std::size_t> batch(rows);
        std::iota(batch.begin(), batch.end(), std::size_t{0});
        std::vector<int> dealt(rows, 0);
        for (int d = 0; d < data; ++d) {
          const auto along_data = rank_of(d, data);
          const BatchSharder share(*along_data);
          const std::vector<std::size_t> together = share.of_padded(batch);
          for (int c = 0; c < context; ++c) {
            const auto along_context = rank_of(c, context);
            const BatchSharder answering(*along_context);
            const std::vector<std::size_t> mine = answering.of_padded(together);
            ASSERT_EQ(mine.size(), answering.most_of(together.size()));
            for (std::size_t i = 0; i < mine.size(); ++i) {
              const std::size_t place = share.global(answering.global(i));
              if (place >= rows || answering.global(i) >= together.size()) continue;  // padding
              EXPECT_EQ(mine[i], place);
              ++dealt[place];
            }
          }
        }
        EXPECT_THAT(dealt, ::testing::Each(1));
      }
    }
  }
}

TEST(BatchSharder, NothingIsGatheredOfNothing) {
  EXPECT_FALSE(BatchSharder(*rank_of(1, 2)).gather({}, 1).defined());
  const at::Tensor mine = at::arange(4);
  EXPECT_TRUE(BatchSharder(*make_single()).gather(mine, 2).is_same(mine));
}

TEST(BatchSharder, PicksWholeBlocks) {
  const auto b = rank_of(1, 2);
  const at::Tensor batch = at::arange(16).view({8, 2});  // 4 prompts of 2 sequences
  const at::Tensor mine = BatchSharder(*b).pick(batch, 2);
  EXPECT_TRUE(mine.equal(at::cat({batch.narrow(0, 2, 2), batch.narrow(0, 6, 2)})));
  const at::Tensor every_second = BatchSharder(*b).pick(batch, 1);
  EXPECT_TRUE(every_second.equal(batch.slice(0, 1, 8, 2)));
  EXPECT_TRUE(every_second.is_contiguous());
}

}  // namespace
}  // namespace neap::parallel
