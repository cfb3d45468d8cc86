// Links to the other pipeline stages through a communicator.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "parallel/communicator.h"
#include "step/pipeline/stage_links.h"

namespace neap::ops {

class StageLinks final : public step::StageLinks<at::Tensor> {
 public:
  /// `stages` has one rank per stage, and must outlive it.
  explicit StageLinks(parallel::Communicator& stages) : stages_(stages) {}
  void send(const at::Tensor& t, std::int64_t stage) override {
    stages_.send(t, static_cast<int>(stage));
  }
  void receive(const at::Tensor& t, std::int64_t stage) override {
    stages_.receive(t, static_cast<int>(stage));
  }
  [[nodiscard]] std::vector<double> join(const std::vector<double>& mine) override {
    return stages_.join(mine);
  }

 private:
  parallel::Communicator& stages_;
};

}  // namespace neap::ops
