// The interface of operations to the other pipeline stages.
#pragma once

#include <cstdint>
#include <vector>

namespace neap::step {

/// Links to the other stages.
///
/// Threads   one at a time.
/// Failure   Error.
/// Order     data from one stage to another arrive in the order of sending. A send may wait until
///           the other stage receives.
template <class T>
class StageLinks {
 public:
  virtual ~StageLinks() = default;
  virtual void send(const T& t, std::int64_t stage) = 0;
  /// Receives into `t`, which has the shape and type of the sent tensor.
  virtual void receive(const T& t, std::int64_t stage) = 0;
  /// The values of all stages, in order; every stage calls it.
  [[nodiscard]] virtual std::vector<double> join(const std::vector<double>& mine) = 0;
};

}  // namespace neap::step
