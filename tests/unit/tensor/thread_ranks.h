// Ranks of a test: threads of one process, each with its communicator. Sums are in the order of the ranks.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "parallel/communicator.h"

namespace neap::testing {

class ThreadRanks {
 public:
  explicit ThreadRanks(int size) : barrier_(size), given_(static_cast<std::size_t>(size)) {}
  [[nodiscard]] int size() const { return static_cast<int>(given_.size()); }
  /// visit(what every rank gave), while they stay as they are; then each may change its own.
  template <class Visit>
  void exchange(int rank, const at::Tensor& mine, const Visit& visit) {
    given_[static_cast<std::size_t>(rank)] = mine;
    barrier_.arrive_and_wait();
    visit(given_);
    barrier_.arrive_and_wait();
  }

 private:
  std::barrier<> barrier_;
  std::vector<at::Tensor> given_;
};

class ThreadCommunicator final : public parallel::Communicator {
 public:
  ThreadCommunicator(ThreadRanks& ranks, int rank)
      : Communicator(rank, ranks.size()), ranks_(ranks) {}
  [[nodiscard]] std::string name() const override { return "threads"; }
  void abort(int exit_code) noexcept override { std::_Exit(exit_code); }

 private:
  void do_all_reduce(const at::Tensor& t, parallel::Reduce op) override {
    at::Tensor sum;
    ranks_.exchange(rank(), t, [&](const std::vector<at::Tensor>& all) {
      sum = all[0].clone();
      for (std::size_t r = 1; r < all.size(); ++r)
        sum = op == parallel::Reduce::kSum ? sum.add(all[r]) : at::maximum(sum, all[r]);
    });
    at::Tensor(t).copy_(sum);
  }
  void do_reduce_scatter(const at::Tensor& t, const Counts& counts) override {
    const std::int64_t first = first_of(counts, rank());
    const std::int64_t count = counts[static_cast<std::size_t>(rank())];
    at::Tensor sum;
    ranks_.exchange(rank(), t, [&](const std::vector<at::Tensor>& all) {
      sum = all[0].narrow(0, first, count).clone();
      for (std::size_t r = 1; r < all.size(); ++r) sum = sum.add(all[r].narrow(0, first, count));
    });
    t.narrow(0, first, count).copy_(sum);
  }
  void do_all_gather(const at::Tensor& t, const Counts& counts) override {
    ranks_.exchange(rank(), t, [&](const std::vector<at::Tensor>& all) {
      for (int r = 0; r < size(); ++r) {
        const std::int64_t count = counts[static_cast<std::size_t>(r)];
        if (r == rank() || count == 0) continue;
        t.narrow(0, first_of(counts, r), count)
            .copy_(all[static_cast<std::size_t>(r)].narrow(0, first_of(counts, r), count));
      }
    });
  }
  void do_broadcast(const at::Tensor& t, int root) override {
    ranks_.exchange(rank(), t, [&](const std::vector<at::Tensor>& all) {
      if (rank() != root) at::Tensor(t).copy_(all[static_cast<std::size_t>(root)]);
    });
  }
  void do_barrier() override {
    ranks_.exchange(rank(), {}, [](const auto&) {});
  }
  void do_send(const at::Tensor&, int) override {
    throw std::logic_error("ranks of threads send nothing");
  }
  void do_receive(const at::Tensor&, int) override {
    throw std::logic_error("ranks of threads receive nothing");
  }
  std::unique_ptr<Communicator> do_split(int, int, int) override {
    throw std::logic_error("ranks of threads are not divided");
  }

  ThreadRanks& ranks_;
};

/// body(rank's communicator) on `size` ranks together. One that throws ends the program: the others wait.
inline void on_ranks(int size, const std::function<void(parallel::Communicator&)>& body) {
  ThreadRanks ranks(size);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      ThreadCommunicator communicator(ranks, rank);
      try {
        body(communicator);
      } catch (const std::exception& e) {
        std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
        std::_Exit(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace neap::testing
