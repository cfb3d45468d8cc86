// Collectives of a communicator's lane, against what each rank can work out by itself.
#include <ATen/ATen.h>

#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives.h"

namespace collectives {

// Sums that run beside this rank's work: of whole tensors and of parts, several in a call, read behind join().
void run_lane(Communicator& ranks, at::Device device) {
  const auto me = static_cast<std::size_t>(ranks.rank());
  const auto mine = [&](std::int64_t n) { return rounded(ranks.rank(), n, at::kFloat, device); };
  (void)ranks.take_lane_use();
  for (int round = 0; round < 3; ++round) {
    std::vector<std::pair<at::Tensor, std::vector<std::int64_t>>> begun;
    for (const std::int64_t n : {std::int64_t{1'500'001}, std::int64_t{7}, std::int64_t{4'000}}) {
      std::vector<Communicator::PartialSum> sums = {{mine(n), {}}};
      for (const std::vector<std::int64_t>& counts : cuts_of(n, ranks.size()))
        sums.push_back({mine(n), counts});
      sums.push_back({at::empty({0}, mine(1).options()), {}});
      ranks.begin_sums(sums);
      // The lane may still be at it; other tensors are free.
      expect(mine(n).equal(mine(n)), "work beside the lane");
      for (const Communicator::PartialSum& sum : sums) begun.emplace_back(sum.tensor, sum.counts);
    }
    if (round < 2) {
      ranks.join();
    } else {
      ranks.barrier();  // another collective waits for the lane as well
    }
    for (const auto& [tensor, counts] : begun) {
      at::Tensor sum = mine(tensor.numel());
      ranks.all_reduce(sum);
      const std::int64_t first =
          counts.empty()
              ? 0
              : std::accumulate(counts.begin(), counts.begin() + ranks.rank(), std::int64_t{0});
      const std::int64_t count = counts.empty() ? tensor.numel() : counts[me];
      const at::Tensor a = tensor.narrow(0, first, count), b = sum.narrow(0, first, count);
      expect(ranks.name() == "mpi" ? a.equal(b) : at::allclose(a, b, 1e-5), "sums of the lane");
    }
  }
  ranks.join();  // nothing was begun
  const neap::bridge::PeerUse use = ranks.take_lane_use();
  expect(use.bytes.count() > 0 && use.seconds > 0 && use.visible_seconds >= 0, "use of the lane");
  expect(ranks.take_lane_use().bytes.is_zero(), "use of the lane is taken once");
}

// Gathers that run beside this rank's work, from memory of their own, waited for by the stream alone.
void run_lane_gathers(Communicator& ranks, at::Device device) {
  (void)ranks.take_lane_use();
  for (int round = 0; round < 3; ++round) {
    struct Begun {
      std::int64_t number;
      std::vector<Communicator::PartialGather> gathers;  // theirs until they are waited for
      at::Tensor all;
    };
    std::vector<Begun> begun;
    for (const std::int64_t n : {std::int64_t{1'500'001}, std::int64_t{7}, std::int64_t{4'000}}) {
      const at::Tensor all = rounded(7 + round, n, at::kFloat, device);
      std::vector<Communicator::PartialGather> gathers;
      for (const std::vector<std::int64_t>& counts : cuts_of(n, ranks.size())) {
        const std::int64_t first =
            std::accumulate(counts.begin(), counts.begin() + ranks.rank(), std::int64_t{0});
        const at::Tensor mine =
            all.narrow(0, first, counts[static_cast<std::size_t>(ranks.rank())]).clone();
        gathers.push_back({mine, at::zeros_like(all), counts});
      }
      const std::int64_t number = ranks.begin_gathers(gathers);
      begun.push_back({number, std::move(gathers), all});
    }
    if (round == 1) ranks.barrier();  // it waits for the lane
    for (const Begun& one : begun) {
      ranks.wait_for(one.number);
      for (const Communicator::PartialGather& gather : one.gathers)
        expect(gather.whole.equal(one.all), "gathers of the lane");
    }
    if (round == 2) ranks.wait_for(begun.front().number);  // again
  }
  ranks.join();
  const neap::bridge::PeerUse use = ranks.take_lane_use();
  expect(use.bytes.count() > 0 && use.seconds > 0 && use.visible_seconds >= 0 &&
             use.visible_seconds <= use.seconds * (1 + 1e-9),
         "use of the lane's gathers");
  bool refused = false;
  try {
    const at::Tensor t = at::zeros({4}, at::TensorOptions().device(device));
    (void)ranks.begin_gathers(
        {{t, t, std::vector<std::int64_t>(static_cast<std::size_t>(ranks.size()), 4)}});
  } catch (const neap::Error&) {
    refused = true;
  }
  expect(refused, "a gather whose parts are not the whole");
}

// Tensors that go through every slot many times, sums and gathers in turns.
void run_long_lane(Communicator& ranks, at::Device device) {
  constexpr std::int64_t kElements = 40'000'003;
  const at::Tensor all = rounded(5, kElements, at::kFloat, device);
  at::Tensor sum = rounded(0, kElements, at::kFloat, device);
  for (int r = 1; r < ranks.size(); ++r) sum += rounded(r, kElements, at::kFloat, device);
  const std::vector<std::int64_t> counts = cuts_of(kElements, ranks.size()).front();
  const std::int64_t first =
      std::accumulate(counts.begin(), counts.begin() + ranks.rank(), std::int64_t{0});
  const std::int64_t count = counts[static_cast<std::size_t>(ranks.rank())];
  for (int round = 0; round < 3; ++round) {
    const at::Tensor whole = rounded(ranks.rank(), kElements, at::kFloat, device);
    const at::Tensor parts = whole.clone(), gathered = at::zeros_like(whole);
    ranks.begin_sums({{whole, {}}, {parts, counts}});
    (void)ranks.begin_gathers({{all.narrow(0, first, count), gathered, counts}});
    ranks.join();
    expect(whole.equal(sum), "a long sum has the bits of ranks in their order");
    expect(parts.narrow(0, first, count).equal(sum.narrow(0, first, count)), "long parts of a sum");
    expect(gathered.equal(all), "a long gather");
  }
}

void fail_in_lane(Communicator& ranks, bool chosen, at::Device device) {
  for (int i = 0; i < 4; ++i) {
    if (chosen && i == 2) throw std::runtime_error("rank made to fail");
    ranks.begin_sums({{rounded(ranks.rank(), 100'000, at::kFloat, device), {}}});
  }
  ranks.join();
  throw std::runtime_error("the lane ended without the failed rank");
}

}  // namespace collectives
