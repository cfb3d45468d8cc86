// Every collective on every type and awkward sizes, against what each rank can work out by itself.
// usage: [cpu|cuda] [fail RANK CODE | fail-in-lane RANK CODE | fail-in-copies RANK CODE | die RANK | meet]
// Prints one line on rank 0. Started by mpirun or under torchrun's variables.
#include <ATen/ATen.h>

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
#include "collectives.h"
#include "parallel/batch_sharder.h"
#include "parallel/communicator.h"
#include "parallel/groups.h"
#include "parallel/row_deal.h"
#include "parallel/run_collectively.h"

namespace collectives {
namespace {

using neap::parallel::Reduce;

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
  const std::int64_t rows = std::int64_t{12} * ranks.size();
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
      neap::parallel::balanced_rows(counts, rows / 2, ranks.size()), one};
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
      const at::Tensor all = at::empty({std::int64_t{3} * group.size()}, t.options());
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
  // The first rank's text is empty, the last one's the longest.
  const auto text_of = [](int rank) {
    return std::string(static_cast<std::size_t>(rank) * 3, '\xff')
        .append(static_cast<std::size_t>(rank), '\0');
  };
  for (int root = 0; root < size; ++root)
    expect(ranks.broadcast(text_of(ranks.rank()), root) == text_of(root), "broadcast of a text");
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
  for (std::int64_t row = 0; row < std::int64_t{4} * size; ++row)
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

// On the CPU sums of 4 and 8 bytes take two pieces of 4 MiB; narrower ones take one, with more than a thousand elements.
std::int64_t large_size(at::ScalarType type, at::Device device) {
  if (device.is_cuda()) return 1'500'001;
  const std::size_t bytes = at::elementSize(type);
  return bytes == 8 ? 700'001 : bytes == 4 ? 1'200'001 : 300'001;
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
    for (const at::ScalarType type :
         {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kByte}) {
      for (const std::int64_t n :
           {std::int64_t{1}, std::int64_t{7}, std::int64_t{1000}, large_size(type, options.device)})
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
}  // namespace collectives

int main(int argc, char** argv) {
  try {
    return collectives::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
