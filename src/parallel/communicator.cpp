#include "parallel/communicator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/status.h"
#include "base/text.h"
#include "bridge/runtime.h"

namespace neap::parallel {
namespace {

bool known(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16:
    case at::kHalf:
    case at::kLong:
    case at::kInt:
    case at::kByte:
      return true;
    default:
      return false;
  }
}

void check(const at::Tensor& t, const char* call) {
  if (!t.defined() || !t.is_contiguous() || !known(t.scalar_type())) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{} wants a contiguous tensor of float32, float64, bfloat16, float16, "
                       "int64, int32 or uint8",
                       call));
  }
}

void check_pair(const at::Tensor& one, const at::Tensor& all, int size, const char* call) {
  check(one, call);
  check(all, call);
  if (one.scalar_type() != all.scalar_type() || one.device() != all.device() ||
      one.numel() * size != all.numel()) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: {} elements on each of {} ranks do not go with {} in all", call,
                       one.numel(), size, all.numel()));
  }
}

// Uses host memory, so that it works in any phase.
at::Tensor host_tensor(std::vector<double>& values) {
  return at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())},
                       at::TensorOptions().dtype(at::kDouble));
}

}  // namespace

void Communicator::all_reduce(const at::Tensor& t, Reduce op) {
  check(t, "all_reduce");
  if (size_ > 1 && t.numel() > 0) do_all_reduce(t, op);
}

void Communicator::all_gather(const at::Tensor& out, const at::Tensor& in) {
  check_pair(in, out, size_, "all_gather");
  const std::int64_t n = in.numel();
  if (n == 0) return;
  const at::Tensor flat = out.view({-1});
  const at::Tensor mine = flat.narrow(0, rank_ * n, n);
  if (mine.data_ptr() != in.data_ptr()) at::Tensor(mine).copy_(in.view({-1}));
  if (size_ > 1) do_all_gather(flat, Counts(static_cast<std::size_t>(size_), n));
}

void Communicator::reduce_scatter(const at::Tensor& t, const Counts& counts) {
  check_parts(t, counts, "reduce_scatter");
  if (size_ > 1 && t.numel() > 0) do_reduce_scatter(t, counts);
}

void Communicator::all_gather(const at::Tensor& t, const Counts& counts) {
  check_parts(t, counts, "all_gather");
  if (size_ > 1 && t.numel() > 0) do_all_gather(t, counts);
}

std::int64_t Communicator::first_of(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

void Communicator::check_parts(const at::Tensor& t, const Counts& counts, const char* call) const {
  check(t, call);
  const bool negative = std::any_of(counts.begin(), counts.end(), [](auto n) { return n < 0; });
  const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (t.dim() != 1 || negative || std::ssize(counts) != size_ || all != t.numel()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        format("{}: {} parts of {} elements in all are not those of {} elements on {} ranks", call,
               counts.size(), all, t.numel(), size_));
  }
}

void Communicator::check_root(int root, const char* call) const {
  if (root < 0 || root >= size_) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{}: rank {}; there are {} ranks", call, root, size_));
  }
}

void Communicator::broadcast(const at::Tensor& t, int root) {
  check(t, "broadcast");
  check_root(root, "broadcast");
  if (size_ > 1 && t.numel() > 0) do_broadcast(t, root);
}

std::string Communicator::broadcast(std::string text, int root) {
  std::int64_t bytes = std::ssize(text);
  broadcast(at::from_blob(&bytes, {1}, at::kLong), root);
  text.resize(static_cast<std::size_t>(bytes));
  broadcast(at::from_blob(text.data(), {bytes}, at::kByte), root);
  return text;
}

void Communicator::check_other(const at::Tensor& t, int rank, const char* call) const {
  check(t, call);
  check_root(rank, call);
  if (rank == rank_)
    throw Error(ErrorCode::kInvalidArgument, format("{}: rank {} is this one", call, rank));
}

void Communicator::send(const at::Tensor& t, int to) {
  check_other(t, to, "send");
  if (t.numel() > 0) do_send(t, to);
}

void Communicator::receive(const at::Tensor& t, int from) {
  check_other(t, from, "receive");
  if (t.numel() > 0) do_receive(t, from);
}

void Communicator::barrier() {
  if (size_ > 1) do_barrier();
}

std::unique_ptr<Communicator> Communicator::split(int color) {
  if (alone()) return make_single();
  const std::vector<std::int64_t> colors = of_all_ranks({color});
  const auto end = colors.begin() + rank_;
  const auto same = [&](auto first, auto last) {
    return static_cast<int>(std::count(first, last, color));
  };
  std::unique_ptr<Communicator> group =
      do_split(color, same(colors.begin(), end), same(colors.begin(), colors.end()));
  return group->alone() ? make_single() : std::move(group);
}

std::int64_t Communicator::begin_sums(const std::vector<PartialSum>& sums) {
  std::vector<PartialSum> some;
  for (const PartialSum& sum : sums) {
    if (sum.counts.empty()) {
      check(sum.tensor, "begin_sums");
    } else {
      check_parts(sum.tensor, sum.counts, "begin_sums");
    }
    if (size_ > 1 && sum.tensor.numel() > 0) some.push_back(sum);
  }
  return some.empty() ? 0 : do_begin_sums(some);
}

std::int64_t Communicator::begin_gathers(const std::vector<PartialGather>& gathers) {
  std::vector<PartialGather> some;
  for (const PartialGather& gather : gathers) {
    check_parts(gather.whole, gather.counts, "begin_gathers");
    check(gather.mine, "begin_gathers");
    if (gather.mine.scalar_type() != gather.whole.scalar_type() ||
        gather.mine.device() != gather.whole.device() ||
        gather.mine.numel() != gather.counts[static_cast<std::size_t>(rank_)])
      throw Error(ErrorCode::kInvalidArgument,
                  format("begin_gathers: {} elements of rank {} are not its part of {}",
                         gather.mine.numel(), rank_, gather.whole.numel()));
    if (gather.whole.numel() > 0) some.push_back(gather);
  }
  return some.empty() ? 0 : do_begin_gathers(some);
}

std::int64_t Communicator::begin_shift(const at::Tensor& mine, const at::Tensor& theirs) {
  check(mine, "begin_shift");
  check(theirs, "begin_shift");
  if (mine.nbytes() != theirs.nbytes() || mine.device() != theirs.device())
    throw Error(
        ErrorCode::kInvalidArgument,
        format("begin_shift: {} bytes are sent and {} received", mine.nbytes(), theirs.nbytes()));
  if (mine.numel() == 0) return 0;
  if (size_ == 1) {
    theirs.copy_(mine);
    return 0;
  }
  return do_begin_shift(mine, theirs);
}

// send() may block until the receiver is ready. One of two neighbours receives first, so that the
// ring cannot deadlock.
std::int64_t Communicator::shift_at_once(const at::Tensor& mine, const at::Tensor& theirs) {
  const auto start = std::chrono::steady_clock::now();
  const bool sends_first = rank_ % 2 == 0;
  if (sends_first) do_send(mine, next_rank());
  do_receive(theirs, rank_before());
  if (!sends_first) do_send(mine, next_rank());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  add_lane_use({Bytes(mine.nbytes()), seconds.count(), seconds.count()});
  return 0;
}

void Communicator::wait_for(std::int64_t begun) {
  if (size_ > 1) do_wait_for(begun);
}

std::int64_t Communicator::gather_at_once(const std::vector<PartialGather>& gathers) {
  const auto start = std::chrono::steady_clock::now();
  Bytes bytes;
  for (const PartialGather& gather : gathers) {
    bytes += Bytes(gather.whole.nbytes());
    gather.whole.narrow(0, first_of(gather.counts, rank_), gather.mine.numel()).copy_(gather.mine);
    if (size_ > 1) do_all_gather(gather.whole, gather.counts);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  add_lane_use({bytes, seconds.count(), seconds.count()});
  return 0;
}

void Communicator::join() {
  if (size_ > 1) do_join();
}

std::int64_t Communicator::sum_at_once(const std::vector<PartialSum>& sums) {
  const auto start = std::chrono::steady_clock::now();
  Bytes bytes;
  for (const PartialSum& sum : sums) {
    bytes += Bytes(sum.tensor.nbytes());
    if (sum.counts.empty()) {
      do_all_reduce(sum.tensor, Reduce::kSum);
    } else {
      do_reduce_scatter(sum.tensor, sum.counts);
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  add_lane_use({bytes, seconds.count(), seconds.count()});
  return 0;
}

std::int64_t Communicator::more_elsewhere(std::int64_t own) {
  std::vector<double> most = {static_cast<double>(own)};
  max(most);
  return static_cast<std::int64_t>(most[0]) - own;
}

double Communicator::sum(double x) {
  std::vector<double> one = {x};
  sum(one);
  return one[0];
}

void Communicator::sum(std::vector<double>& values) {
  all_reduce(host_tensor(values), Reduce::kSum);
}

std::vector<double> Communicator::join(const std::vector<double>& values) {
  if (alone()) return values;
  const Counts counts = of_all_ranks({static_cast<std::int64_t>(values.size())});
  std::vector<double> all(static_cast<std::size_t>(first_of(counts, size_)));
  std::copy(values.begin(), values.end(), all.begin() + first_of(counts, rank_));
  all_gather(host_tensor(all), counts);
  return all;
}

void Communicator::max(std::vector<double>& values) {
  all_reduce(host_tensor(values), Reduce::kMax);
}

bool Communicator::any(bool flag) {
  std::vector<double> one = {flag ? 1.0 : 0.0};
  max(one);
  return one[0] > 0;
}

void Communicator::expect_same(std::int64_t value, const std::string& what) {
  if (alone()) return;
  const std::vector<std::int64_t> values = of_all_ranks({value});
  for (int r = 1; r < size_; ++r) {
    const std::int64_t other = values[static_cast<std::size_t>(r)];
    if (other != values[0]) {
      throw Error(ErrorCode::kInternal,
                  format("{} differs between ranks: {} on rank 0, {} on rank {}", what, values[0],
                         other, r));
    }
  }
}

void Communicator::expect_same(const std::vector<NamedText>& texts) {
  constexpr std::size_t kLongestText = 200;  // limit for a text that a message repeats
  if (alone()) return;
  expect_same(std::ssize(texts), "The number of things that ranks compare");
  std::vector<std::int64_t> mine;
  mine.reserve(texts.size());
  for (const NamedText& t : texts)
    mine.push_back(static_cast<std::int64_t>(std::hash<std::string>{}(t.name + "\n" + t.text)));
  const std::vector<std::int64_t> values = of_all_ranks(mine);
  std::string different;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    bool same = true;
    for (std::size_t at = i; at < values.size(); at += texts.size())
      same = same && values[at] == mine[i];
    if (same) continue;
    different += format("{}{} ({} on rank {})", different.empty() ? "" : ", ", texts[i].name,
                        excerpt(texts[i].text, kLongestText), rank_);
  }
  if (different.empty()) return;
  throw Error(ErrorCode::kInvalidArgument, format("Ranks differ in {}", different));
}

std::vector<std::int64_t> Communicator::of_all_ranks(const std::vector<std::int64_t>& mine) {
  const bridge::HostScope host;
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(size_));
  const at::Tensor in = at::tensor(mine, at::kLong);
  all_gather(at::from_blob(all.data(), {std::ssize(all)}, at::kLong), in);
  return all;
}

namespace {

class Single final : public Communicator {
 public:
  Single() : Communicator(0, 1) {}
  [[nodiscard]] std::string name() const override { return "single"; }
  void abort(int /*exit_code*/) noexcept override {}

 private:
  // Never called: the public functions return early for one rank.
  void do_all_reduce(const at::Tensor&, Reduce) override {}
  void do_reduce_scatter(const at::Tensor&, const Counts&) override {}
  void do_all_gather(const at::Tensor&, const Counts&) override {}
  void do_broadcast(const at::Tensor&, int) override {}
  void do_send(const at::Tensor&, int) override {}
  void do_receive(const at::Tensor&, int) override {}
  void do_barrier() override {}
  std::unique_ptr<Communicator> do_split(int, int, int) override { return make_single(); }
};

}  // namespace

std::unique_ptr<Communicator> make_single() {
  return std::make_unique<Single>();
}

}  // namespace neap::parallel
