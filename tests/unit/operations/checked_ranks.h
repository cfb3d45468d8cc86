// A rank of several whose others have nothing to add, and which notes what is handed over while backward goes on: nothing
// may be added to a tensor between begin_sums() and the wait for it, and none may be handed over twice. It may fail at a
// call.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "mute_ranks.h"

namespace neap::testing {

class CheckedRanks final : public MuteRanks {
 public:
  CheckedRanks(int rank, int size) : MuteRanks(rank, size) {}

  /// Of the calls of begin_sums from here on, the one with this number throws; -1: none does.
  void fail_at(std::int64_t call) {
    fails_at_ = call;
    calls_ = 0;
  }
  /// Calls of begin_sums since then; elements of each mini-batch that were handed over.
  [[nodiscard]] std::int64_t calls() const { return calls_; }
  [[nodiscard]] std::vector<std::int64_t> take_elements() {
    return std::exchange(elements_of_batches_, {});
  }
  /// What was handed over and not joined.
  void forget() {
    handed_.clear();
    elements_ = 0;
  }
  /// What went wrong; empty: nothing.
  [[nodiscard]] const std::string& wrong() const { return wrong_; }

 private:
  struct Handed {
    at::Tensor tensor;
    std::vector<std::byte> then;  // as it was, in memory that nobody records
    std::int64_t number = 0;
  };
  std::int64_t do_begin_sums(const std::vector<PartialSum>& sums) override {
    if (calls_++ == fails_at_) throw Error(ErrorCode::kIo, "made to fail");
    for (const PartialSum& sum : sums) {
      for (const Handed& handed : handed_) {
        if (handed.tensor.const_data_ptr() == sum.tensor.const_data_ptr())
          wrong_ = "handed over twice";
      }
      handed_.push_back({sum.tensor, bytes_of(sum.tensor), next_});
    }
    return next_++;
  }
  void do_wait_for(std::int64_t number) override {
    std::erase_if(handed_, [&](const Handed& handed) {
      if (handed.number == number) count(handed);
      return handed.number == number;
    });
  }
  void do_join() override {
    for (const Handed& handed : handed_) count(handed);
    handed_.clear();
    elements_of_batches_.push_back(std::exchange(elements_, 0));
  }
  void count(const Handed& handed) {
    if (bytes_of(handed.tensor) != handed.then) wrong_ = "added to behind its hand-over";
    elements_ += handed.tensor.numel();
  }
  static std::vector<std::byte> bytes_of(const at::Tensor& t) {
    const at::Tensor here = t.cpu();  // the same tensor on a CPU
    const auto* const first = static_cast<const std::byte*>(here.const_data_ptr());
    return {first, first + here.nbytes()};
  }

  void do_all_gather(const at::Tensor&, const Counts&) override {}

  std::vector<Handed> handed_;
  std::vector<std::int64_t> elements_of_batches_;
  std::int64_t calls_ = 0, fails_at_ = -1, next_ = 1, elements_ = 0;
  std::string wrong_;
};

}  // namespace neap::testing
