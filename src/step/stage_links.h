// The other stages of a pipeline, as operations reach them.
#pragma once

#include <cstdint>
#include <vector>

namespace neap::step {

/// Threads   one at a time.   Failure   Error.
/// Order     what one stage sends another comes in the order of sending. A send may wait until the other
///           stage receives.
template <class T>
class StageLinks {
 public:
  virtual ~StageLinks() = default;
  virtual void send(const T& t, std::int64_t stage) = 0;
  /// Into `t`, of the shape and type that the other stage sends.
  virtual void receive(const T& t, std::int64_t stage) = 0;
  /// The values of all stages, one after another; every stage calls it.
  [[nodiscard]] virtual std::vector<double> join(const std::vector<double>& mine) = 0;
};

}  // namespace neap::step
