// Every collective on every type and awkward sizes, against what each rank can work out by itself.
// usage: [cpu|cuda] [fail RANK CODE | fail-in-lane RANK CODE | fail-in-copies RANK CODE | die RANK | meet]
// Prints one line on rank 0. Started by mpirun or under torchrun's variables.
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/format.h"
#include "base/status.h"
#include "bridge/torch_cuda.h"
#include "parallel/batch_sharder.h"
#include "parallel/communicator.h"
#include "parallel/groups.h"
#include "parallel/row_deal.h"
#include "parallel/run_collectively.h"

namespace {

using neap::parallel::Communicator;
using neap::parallel::Reduce;

int checks = 0;

void expect(bool ok, const std::string& what) {
  ++checks;
  if (!ok) throw std::runtime_error("wrong: " + what);
}

// What rank `r` brings: small whole numbers, so that sums are exact in every type.
at::Tensor brought(int r, std::int64_t n, at::ScalarType type, at::Device device) {
  return at::arange(n, at::kLong).add(3 * r).remainder(7).add(r).to(device, type);
}

void run_type(Communicator& ranks, at::ScalarType type, std::int64_t n, at::Device device) {
  const std::string where = std::string(at::toString(type)) + " " + std::to_string(n);
  const int size = ranks.size();
  const auto mine = [&] { return brought(ranks.rank(), n, type, device); };
  at::Tensor sum = at::zeros({n}, at::TensorOptions().dtype(at::kDouble).device(device));
  at::Tensor largest = brought(0, n, type, device);
  for (int r = 0; r < size; ++r) {
    const at::Tensor other = brought(r, n, type, device);
    sum += other.to(at::kDouble);
    largest = at::maximum(largest, other);
  }
  at::Tensor t = mine();
  ranks.all_reduce(t);
  expect(t.to(at::kDouble).equal(sum), "sum " + where);
  t = mine();
  ranks.all_reduce(t, Reduce::kMax);
  expect(t.equal(largest), "max " + where);
  t = mine();
  ranks.broadcast(t, size - 1);
  expect(t.equal(brought(size - 1, n, type, device)), "broadcast " + where);

  at::Tensor all = at::empty({size * n}, t.options());
  ranks.all_gather(all, mine());
  at::Tensor in_place = at::empty({size * n}, t.options());
  in_place.narrow(0, ranks.rank() * n, n).copy_(mine());
  ranks.all_gather(in_place, in_place.narrow(0, ranks.rank() * n, n));
  for (int r = 0; r < size; ++r)
    expect(all.narrow(0, r * n, n).equal(brought(r, n, type, device)), "all_gather " + where);
  expect(all.equal(in_place), "all_gather in place " + where);
}

// Parts of awkward sizes: even ones, ones with a rest, whole tensors on one rank, ranks without any.
std::vector<std::vector<std::int64_t>> cuts_of(std::int64_t n, int size) {
  const auto ranks = static_cast<std::size_t>(size);
  std::vector<std::vector<std::int64_t>> out;
  std::vector<std::int64_t> even(ranks, n / size), last(ranks), spread(ranks);
  even.back() += n % size;
  last.back() = n;
  std::int64_t left = n;
  for (std::size_t r = 0; r + 1 < ranks; ++r) left -= spread[r] = left / 3;
  spread.back() = left;
  for (auto cut : {even, last, spread}) {
    out.push_back(cut);
    std::reverse(cut.begin(), cut.end());
    out.push_back(cut);
  }
  return out;
}

// What rounds: a part's sum has the bits of a sum of the whole, where sums are Neap's own.
at::Tensor rounded(int r, std::int64_t n, at::ScalarType type, at::Device device) {
  return at::isIntegralType(type, false)
             ? brought(r, n, type, device)
             : at::arange(n, at::kDouble).add(1 + r).rsqrt().mul(r + 1).to(device, type);
}

void run_parts(Communicator& ranks, at::ScalarType type, std::int64_t n, at::Device device) {
  at::Tensor sum = rounded(ranks.rank(), n, type, device);
  ranks.all_reduce(sum);
  const bool same_bits = ranks.name() == "mpi";
  const auto equal = [&](const at::Tensor& a, const at::Tensor& b) {
    return same_bits ? a.equal(b) : at::allclose(a.to(at::kDouble), b.to(at::kDouble), 1e-2);
  };
  for (const std::vector<std::int64_t>& counts : cuts_of(n, ranks.size())) {
    const std::string where = neap::format("{} {} from {}", at::toString(type), n, counts.front());
    const auto me = static_cast<std::size_t>(ranks.rank());
    const std::int64_t first =
        std::accumulate(counts.begin(), counts.begin() + ranks.rank(), std::int64_t{0});
    at::Tensor t = rounded(ranks.rank(), n, type, device);
    ranks.reduce_scatter(t, counts);
    const at::Tensor mine = t.narrow(0, first, counts[me]);
    expect(equal(mine, sum.narrow(0, first, counts[me])), "reduce_scatter " + where);
    at::Tensor all = at::zeros_like(t);
    all.narrow(0, first, counts[me]).copy_(sum.narrow(0, first, counts[me]));
    ranks.all_gather(all, counts);
    expect(all.equal(sum), "all_gather of parts " + where);
  }
  for (int root = 0; root < ranks.size(); ++root) {
    at::Tensor t = rounded(ranks.rank(), n, type, device);
    ranks.reduce(t, root);
    expect(ranks.rank() != root || equal(t, sum), "reduce");
  }
  bool refused = false;
  try {
    ranks.reduce_scatter(sum, std::vector<std::int64_t>(static_cast<std::size_t>(ranks.size()), n));
  } catch (const neap::Error&) {
    refused = true;
  }
  expect(refused, "parts that are not those of the tensor");
}

// Around a ring, which the first rank begins: a send may wait for its receive.
void run_transfers(Communicator& ranks, at::ScalarType type, std::int64_t n, at::Device device) {
  if (ranks.alone()) return;
  const int next = (ranks.rank() + 1) % ranks.size();
  const int before = (ranks.rank() + ranks.size() - 1) % ranks.size();
  at::Tensor t = at::zeros({n}, at::TensorOptions().dtype(type).device(device));
  const at::Tensor mine = brought(ranks.rank(), n, type, device);
  const at::Tensor other = mine.add(1);
  const auto send = [&] { ranks.send(mine, next), ranks.send(other, next); };
  const auto receive = [&] {
    ranks.receive(t, before);
    expect(t.equal(brought(before, n, type, device)), "receive");
    ranks.receive(t, before);
    expect(t.equal(brought(before, n, type, device).add(1)), "in the order of sending");
  };
  if (ranks.first()) send();
  receive();
  if (!ranks.first()) send();
  t.zero_();
  const std::int64_t shift = ranks.begin_shift(mine, t);
  const at::Tensor second = at::zeros_like(t);
  const std::int64_t next_shift = ranks.begin_shift(other, second);
  ranks.wait_for(shift);
  expect(t.equal(brought(before, n, type, device)), "shift");
  ranks.wait_for(next_shift);
  expect(second.equal(brought(before, n, type, device).add(1)), "in the order of shifts");
  ranks.join();
  bool refused = false;
  try {
    ranks.send(t, ranks.rank());
  } catch (const neap::Error&) {
    refused = true;
  }
  expect(refused, "a send to itself");
}

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

// Begins sums until this rank is to fail: the others wait in their lane.
void fail_in_lane(Communicator& ranks, bool chosen, at::Device device) {
  for (int i = 0; i < 4; ++i) {
    if (chosen && i == 2) throw std::runtime_error("rank made to fail");
    ranks.begin_sums({{rounded(ranks.rank(), 100'000, at::kFloat, device), {}}});
  }
  ranks.join();
  throw std::runtime_error("the lane ended without the failed rank");
}

// Sums that round: every rank must have the same bits, and the next time the same again.
void run_rounding(Communicator& ranks, at::Device device) {
  const auto once = [&] {
    at::Tensor t = at::arange(100'003, at::kFloat).add(1).rsqrt().mul(ranks.rank() + 1).to(device);
    ranks.all_reduce(t);
    return t.cpu();
  };
  const at::Tensor first = once();
  expect(first.equal(once()), "the same bits twice");
  ranks.expect_same(first.view(at::kInt).sum(at::kLong).item<std::int64_t>(), "A rounded sum");
}

// A batch that is dealt along data, and on along context, comes back in its order: two blocks of two rows a rank.
void run_shares(const neap::parallel::Groups& groups) {
  const neap::parallel::BatchSharder share(groups.data()), answering(groups.context());
  const at::Tensor batch = at::arange(8 * groups.copies().size(), at::kLong).view({-1, 2});
  const at::Tensor together = share.pick(batch, 2);
  const at::Tensor mine = answering.pick(together, 2);
  expect(mine.size(0) == 4, "rows of one rank");
  expect(answering.gather(mine, 2).equal(together), "rows that are dealt on");
  expect(share.gather(together, 2).equal(batch), "rows of all");
}

// Rows of one deal go to the ranks of another, with the tokens that they have and no others, and some to nobody.
void run_sent_rows(Communicator& ranks) {
  using neap::parallel::RowDeal;
  using neap::parallel::RowLists;
  constexpr std::int64_t kWidth = 9, kFill = -1;
  const std::int64_t rows = 12 * ranks.size();
  std::vector<std::int64_t> counts;
  const at::Tensor batch = at::full({rows, kWidth}, kFill, at::kInt);
  for (std::int64_t row = 0; row < rows; ++row) {
    counts.push_back(row * 7 % (kWidth + 1));
    batch[row]
        .narrow(0, 0, counts.back())
        .copy_(at::arange(counts.back(), at::kInt).add(100 * row));
  }
  RowLists one(static_cast<std::size_t>(ranks.size())), kept = one;
  for (std::int64_t row = 0; row < rows; ++row) one.back().push_back(row);
  for (std::int64_t row = 0; row < rows; row += 3) kept.front().push_back(row);
  const std::vector<RowLists> deals = {
      neap::parallel::rows_in_turns(rows, 2, ranks.size()),
      neap::parallel::rows_in_turns(rows, 1, ranks.size()),
      neap::parallel::balanced_rows(counts, 6 * ranks.size(), ranks.size()), one};
  for (const RowLists& from : deals) {
    const RowDeal has(ranks, from);
    const at::Tensor mine = batch.index_select(0, at::tensor(has.own(), at::kLong));
    for (const RowLists& to : {deals[0], deals[1], deals[2], deals[3], kept}) {
      const RowDeal wants(ranks, to);
      const at::Tensor sent = has.send(mine, wants, counts, kFill);
      expect(sent.equal(batch.index_select(0, at::tensor(wants.own(), at::kLong))), "sent rows");
      expect(sent.is_same(mine) == (from == to), "rows that stay");
    }
  }
}

// Groups of every mesh with two axes, and of one with three: sums and gathers are those of the ranks along the axis.
void run_groups(Communicator& ranks, at::Device device) {
  using neap::spec::Axis;
  std::vector<neap::spec::Mesh> meshes;
  for (int size = 1; size <= ranks.size(); ++size) {
    if (ranks.size() % size != 0) continue;
    for (const Axis axis : {Axis::kTensor, Axis::kContext})
      meshes.push_back(neap::spec::Mesh().set(axis, size).set(Axis::kData, ranks.size() / size));
    if (ranks.size() % (2 * size) != 0) continue;
    meshes.push_back(neap::spec::Mesh()
                         .set(Axis::kTensor, 2)
                         .set(Axis::kContext, size)
                         .set(Axis::kData, ranks.size() / (2 * size)));
    meshes.push_back(neap::spec::Mesh(meshes.back()).set_shards(size));
  }
  for (const neap::spec::Mesh& mesh : meshes) {
    const neap::parallel::Groups groups(ranks, mesh);
    for (const Axis axis : {Axis::kData, Axis::kContext, Axis::kCopies, Axis::kShards,
                            Axis::kReplicas, Axis::kTensor, Axis::kPipe}) {
      Communicator& group = groups.along(axis);
      const std::vector<std::int64_t> line = mesh.line(ranks.rank(), axis);
      expect(group.size() == std::ssize(line), "size of a group");
      expect(group.rank() == mesh.coordinate(ranks.rank(), axis), "rank in a group");
      const at::Tensor t = at::full({3}, ranks.rank(), at::dtype(at::kLong).device(device));
      const at::Tensor all = at::empty({3 * group.size()}, t.options());
      group.all_gather(all, t);
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < line.size(); ++i) {
        sum += line[i];
        expect(all[static_cast<std::int64_t>(3 * i)].item<std::int64_t>() == line[i],
               "ranks of a group");
      }
      group.all_reduce(t);
      expect(t.eq(sum).all().item<bool>(), "sum over a group");
      group.barrier();
    }
    run_shares(groups);
  }
}

void run_host_numbers(Communicator& ranks) {
  const int size = ranks.size();
  expect(ranks.sum(ranks.rank() + 1.0) == size * (size + 1) / 2.0, "sum of numbers");
  std::vector<double> most = {static_cast<double>(ranks.rank()), -1.0};
  ranks.max(most);
  expect(most[0] == size - 1 && most[1] == -1, "max of numbers");
  expect(ranks.any(ranks.rank() == size - 1) && !ranks.any(false), "any");
  ranks.barrier();
  // Rank r has r numbers.
  const auto count = static_cast<std::size_t>(ranks.rank());
  std::vector<double> joined;
  for (int r = 0; r < size; ++r) joined.insert(joined.end(), static_cast<std::size_t>(r), r + 0.5);
  expect(ranks.join(std::vector<double>(count, ranks.rank() + 0.5)) == joined, "join");
  bool differed = false;
  try {
    ranks.expect_same(ranks.rank(), "The rank");
  } catch (const neap::Error&) {
    differed = true;
  }
  expect(differed, "expect_same");
  std::string said;
  try {
    ranks.expect_same({{"size", std::to_string(size)}, {"rank", std::to_string(ranks.rank())}});
  } catch (const neap::Error& e) {
    said = e.what();
  }
  expect(said == neap::format("Ranks differ in rank ({0} on rank {0})", ranks.rank()),
         "expect_same of texts");
  ranks.expect_same({{"size", std::to_string(size)}});
  const neap::parallel::BatchSharder share(ranks);
  const at::Tensor mine = at::full({4, 2}, ranks.rank(), at::kLong);  // two blocks of two rows
  const at::Tensor batch = share.gather(mine, 2);
  for (std::int64_t row = 0; row < 4 * size; ++row)
    expect(batch[row][1].item<std::int64_t>() == row / 2 % size, "share");
  expect(share.pick(batch, 2).equal(mine), "pick");
  for (const int failing : {0, size - 1}) {
    bool told = false;
    try {
      run_collectively(ranks, [&] {
        if (ranks.rank() == failing) throw neap::Error(neap::ErrorCode::kNotFound, "made to fail");
      });
    } catch (const neap::parallel::CollectiveError& e) {
      told =
          e.status().code() == neap::ErrorCode::kNotFound && e.mine() == (ranks.rank() == failing);
    }
    expect(told, "together");
  }
}

// A rank works for three timeouts before it comes; the others wait as long only where it shows that it works.
void work_for_long(Communicator& ranks, double timeout_seconds, bool shows) {
  for (int i = 0; i < 30; ++i) {
    std::this_thread::sleep_for(std::chrono::duration<double>(timeout_seconds / 10));
    if (shows) ranks.show_life();
  }
}

int run(int argc, char** argv) {
  const auto word = [&](int i) { return std::string(i < argc ? argv[i] : ""); };
  const auto environment = neap::value_or_throw(neap::parallel::Environment::detect());
  neap::parallel::ConnectOptions options;
  const bool slow = word(2) == "slow" || word(2) == "late";
  options.timeout_seconds = slow ? 4 : 60;
  if (word(1) == "cuda") {
    if (!neap::bridge::torch_cuda().available)
      throw std::runtime_error(neap::bridge::torch_cuda().reason);
    options.device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(environment.local_rank));
  }
  const auto ranks = neap::parallel::connect(environment, options);
  const bool chosen = word(3) == std::to_string(ranks->rank());
  try {
    if (word(2) == "fail" && chosen) throw std::runtime_error("rank made to fail");
    if (word(2) == "die" && chosen) std::raise(SIGKILL);
    if (slow) {
      if (chosen) work_for_long(*ranks, options.timeout_seconds, word(2) == "slow");
      expect(ranks->sum(1) == ranks->size(), "sum behind long work");
      return 0;
    }
    if (word(2) == "fail-in-copies") expect(ranks->open_copy_lane().empty(), "copies between GPUs");
    if (word(2).starts_with("fail-in-")) fail_in_lane(*ranks, chosen, options.device);
    for (const std::int64_t n :
         {std::int64_t{1}, std::int64_t{7}, std::int64_t{1000}, std::int64_t{1'500'001}}) {
      for (const at::ScalarType type :
           {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kByte})
        run_type(*ranks, type, n, options.device), run_parts(*ranks, type, n, options.device),
            run_transfers(*ranks, type, n, options.device);
    }
    // Host tensors, which a GPU's communicator stages; more than one stage long.
    for (const at::ScalarType type : {at::kFloat, at::kLong})
      run_type(*ranks, type, 300'001, at::kCPU), run_parts(*ranks, type, 300'001, at::kCPU),
          run_transfers(*ranks, type, 300'001, at::kCPU);
    run_lane(*ranks, options.device);
    run_lane_gathers(*ranks, options.device);
    const std::string problem = ranks->open_copy_lane();
    expect(problem.empty() == options.device.is_cuda(), problem);
    if (problem.empty()) {
      run_lane(*ranks, options.device);
      run_lane_gathers(*ranks, options.device);
      run_long_lane(*ranks, options.device);
    }
    run_rounding(*ranks, options.device);
    run_groups(*ranks, options.device);
    run_host_numbers(*ranks);
    run_sent_rows(*ranks);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", ranks->rank(), e.what());
    const int code = word(2).starts_with("fail") && chosen ? std::atoi(word(4).c_str()) : 1;
    ranks->abort(code);
    return code;
  }
  if (ranks->first())
    std::printf("%d checks on %d ranks over %s\n", checks, ranks->size(), ranks->name().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
