// One rank of several whose others say nothing: every collective returns at once, with this rank's values for
// all. What it asks for is what a rank asks for.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>

#include "parallel/communicator.h"

namespace neap::testing {

class MuteRanks : public parallel::Communicator {
 public:
  MuteRanks(int rank, int size) : Communicator(rank, size) {}
  [[nodiscard]] std::string name() const override { return "mute"; }
  void abort(int /*exit_code*/) noexcept override {}

 private:
  void do_all_reduce(const at::Tensor&, parallel::Reduce) override {}
  void do_reduce_scatter(const at::Tensor&, const Counts&) override {}
  void do_all_gather(const at::Tensor& t, const Counts& counts) override {
    const std::int64_t count = counts[static_cast<std::size_t>(rank())];
    const at::Tensor mine = t.narrow(0, first_of(counts, rank()), count);
    for (int r = 0; r < size(); ++r) t.narrow(0, first_of(counts, r), count).copy_(mine);
  }
  void do_broadcast(const at::Tensor&, int) override {}
  void do_send(const at::Tensor&, int) override {}
  void do_receive(const at::Tensor&, int) override {}
  std::int64_t do_begin_shift(const at::Tensor& mine, const at::Tensor& theirs) override {
    theirs.copy_(mine);
    return 0;
  }
  void do_barrier() override {}
  std::unique_ptr<Communicator> do_split(int, int rank, int size) override {
    return std::make_unique<MuteRanks>(rank, size);
  }
};

}  // namespace neap::testing
