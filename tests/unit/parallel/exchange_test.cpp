// Ranks that exchange through slots, executed in random orders: each has two queues, and each queue's next step runs
// when what it waits for is there, as on a GPU. The other extreme is one queue for both.
#include "parallel/exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace neap::parallel {
namespace {

using Counts = std::vector<std::int64_t>;
using Kind = ExchangeStep::Kind;
constexpr std::int64_t kSlots = 4, kMost = 8;

enum class What { kSum, kSumOfParts, kGather };

// Values whose sums depend on the order of ranks.
float brought(int rank, std::int64_t i) {
  return (1.0F + static_cast<float>(rank)) / (3.0F + static_cast<float>(i % 97)) +
         (rank % 2 == 0 ? 1e4F : -1e4F);
}

class Machine {
 public:
  Machine(int ranks, bool one_queue, unsigned seed)
      : ranks_(ranks), one_queue_(one_queue), random_(seed), all_(static_cast<std::size_t>(ranks)) {
    for (int r = 0; r < ranks; ++r) {
      Rank& rank = all_[static_cast<std::size_t>(r)];
      rank.order.emplace_back(r, ranks);
      rank.slots.assign(static_cast<std::size_t>(ranks * kSlots), std::vector<float>(kMost));
      rank.sent.assign(static_cast<std::size_t>(ranks), 0);
      rank.taken.assign(static_cast<std::size_t>(ranks), 0);
    }
  }

  void give(What what, const Counts& counts) {
    const std::int64_t n = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    for (int r = 0; r < ranks_; ++r) {
      Rank& rank = all_[static_cast<std::size_t>(r)];
      std::vector<float> values(static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = brought(r, i);
      rank.tensors.push_back(values);
      ExchangeOrder& order = rank.order.front();
      std::vector<ExchangeStep> steps = what == What::kSum          ? order.sum(counts, kMost)
                                        : what == What::kSumOfParts ? order.sum_parts(counts, kMost)
                                                                    : order.gather(counts, kMost);
      // A begin waits for all that was given before, as the streams of a lane do.
      const std::size_t first = rank.steps.size();
      for (const ExchangeStep& step : steps)
        rank.steps.push_back({step, rank.tensors.size() - 1, first, false});
    }
  }

  // Until nothing is left; false: nothing can go on.
  bool run() {
    while (true) {
      std::vector<std::pair<std::size_t, std::size_t>> ready;
      bool left = false;
      for (std::size_t r = 0; r < all_.size(); ++r) {
        for (const std::size_t s : heads(all_[r])) {
          left = true;
          if (is_ready(all_[r], s)) ready.emplace_back(r, s);
        }
      }
      if (!left) return true;
      if (ready.empty()) return false;
      const auto [r, s] = ready[random_() % ready.size()];
      execute(static_cast<int>(r), all_[r], all_[r].steps[s]);
    }
  }

  [[nodiscard]] const std::vector<float>& tensor(int rank, std::size_t i) const {
    return all_[static_cast<std::size_t>(rank)].tensors[i];
  }

 private:
  struct Given {
    ExchangeStep step;
    std::size_t tensor;
    std::size_t before;  // steps of earlier exchanges
    bool done;
  };
  struct Rank {
    std::vector<ExchangeOrder> order;
    std::vector<std::vector<float>> tensors, slots;
    std::vector<std::int64_t> sent, taken;  // to this rank; by this rank's peers of its messages
    std::vector<Given> steps;
  };

  // The next step of each queue.
  [[nodiscard]] std::vector<std::size_t> heads(const Rank& rank) const {
    std::vector<std::size_t> out;
    bool pushes = false, others = false;
    for (std::size_t s = 0; s < rank.steps.size(); ++s) {
      if (rank.steps[s].done) continue;
      const bool push = rank.steps[s].step.kind == Kind::kPush;
      if (one_queue_) return {s};
      bool& seen = push ? pushes : others;
      if (!seen) out.push_back(s);
      seen = true;
      if (pushes && others) break;
    }
    return out;
  }
  [[nodiscard]] static bool is_ready(const Rank& rank, std::size_t s) {
    const Given& given = rank.steps[s];
    const ExchangeStep& step = given.step;
    for (std::size_t i = 0; i < given.before; ++i)
      if (!rank.steps[i].done) return false;
    if (step.kind == Kind::kPush) {
      for (std::size_t i = 0; step.summed && i < s; ++i)
        if (rank.steps[i].step.kind == Kind::kAdd && !rank.steps[i].done) return false;
      return rank.taken[at(step.peer)] > step.message - kSlots;
    }
    if (step.into >= 0 && rank.sent[at(step.into)] <= step.into_message) return false;
    return rank.sent[at(step.peer)] > step.message;
  }
  [[nodiscard]] static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] static std::size_t slot(int from, std::int64_t message) {
    return static_cast<std::size_t>(from * kSlots + message % kSlots);
  }

  void execute(int me, Rank& rank, Given& given) {
    given.done = true;
    const ExchangeStep& step = given.step;
    const auto n = static_cast<std::size_t>(step.count);
    float* own = rank.tensors[given.tensor].data() + step.first;
    if (step.kind == Kind::kPush) {
      Rank& peer = all_[at(step.peer)];
      std::copy_n(own, n, peer.slots[slot(me, step.message)].begin());
      EXPECT_EQ(peer.sent[at(me)], step.message);
      peer.sent[at(me)] = step.message + 1;
      return;
    }
    std::vector<float>& message = rank.slots[slot(step.peer, step.message)];
    if (step.kind == Kind::kStore) {
      std::copy_n(message.begin(), n, own);
    } else {
      float* into = step.into < 0 ? own : rank.slots[slot(step.into, step.into_message)].data();
      for (std::size_t i = 0; i < n; ++i) into[i] += message[i];
    }
    std::fill(message.begin(), message.end(), 1e30F);  // whoever reads it again is wrong
    all_[at(step.peer)].taken[at(me)] = step.message + 1;
  }

  int ranks_;
  bool one_queue_;
  std::mt19937 random_;
  std::vector<Rank> all_;
};

// In the order of ranks.
std::vector<float> summed(int ranks, std::int64_t n) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < n; ++i) {
    float sum = brought(0, i);
    for (int r = 1; r < ranks; ++r) sum += brought(r, i);
    out.push_back(sum);
  }
  return out;
}

Counts random_counts(int ranks, std::mt19937& random) {
  Counts out;
  for (int r = 0; r < ranks; ++r)
    out.push_back(static_cast<std::int64_t>(random() % 3 == 0 ? 0 : random() % 90));
  if (std::accumulate(out.begin(), out.end(), std::int64_t{0}) == 0) out.front() = 1;
  return out;
}

void expect_results(const Machine& machine, int ranks, std::size_t tensor, What what,
                    const Counts& counts) {
  const std::int64_t n = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const std::vector<float> sums = summed(ranks, n);
  for (int me = 0; me < ranks; ++me) {
    std::int64_t i = 0;
    for (int owner = 0; owner < ranks; ++owner) {
      for (std::int64_t k = 0; k < counts[static_cast<std::size_t>(owner)]; ++k, ++i) {
        if (what == What::kSumOfParts && owner != me) continue;
        const float want =
            what == What::kGather ? brought(owner, i) : sums[static_cast<std::size_t>(i)];
        ASSERT_EQ(machine.tensor(me, tensor)[static_cast<std::size_t>(i)], want)
            << "rank " << me << " of " << ranks << ", element " << i;
      }
    }
  }
}

TEST(Exchange, EndsWithTheSumsOfRanksInOrderWhicheverQueueRunsFirst) {
  for (unsigned seed = 0; seed < 120; ++seed) {
    std::mt19937 random(seed);
    const int ranks = 2 + static_cast<int>(seed % 4);
    Machine machine(ranks, /*one_queue=*/seed % 3 == 0, seed);
    std::vector<std::pair<What, Counts>> given;
    for (int i = 0; i < 4; ++i) {
      given.emplace_back(static_cast<What>(random() % 3), random_counts(ranks, random));
      machine.give(given.back().first, given.back().second);
    }
    ASSERT_TRUE(machine.run()) << "seed " << seed << ": every rank waits";
    for (std::size_t i = 0; i < given.size(); ++i)
      expect_results(machine, ranks, i, given[i].first, given[i].second);
  }
}

TEST(Exchange, PartsOfAWholeTensorAreAllOfIt) {
  EXPECT_EQ(even_parts(256, 2), (Counts{128, 128}));
  EXPECT_EQ(even_parts(100, 2), (Counts{64, 36}));
  EXPECT_EQ(even_parts(7, 3), (Counts{7, 0, 0}));
  for (const std::int64_t n : {1, 63, 65, 1000, 4096})
    for (int ranks = 1; ranks < 9; ++ranks) {
      const Counts parts = even_parts(n, ranks);
      EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), std::int64_t{0}), n);
      EXPECT_GE(*std::min_element(parts.begin(), parts.end()), 0);
    }
}

}  // namespace
}  // namespace neap::parallel
