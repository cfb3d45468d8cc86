#include "parallel/peers_lane.h"

#include <algorithm>
#include <utility>

namespace neap::parallel {
namespace {

double seconds(const c10::Event& from, const c10::Event& to) {
  return from.elapsedTime(to) / 1000;
}

}  // namespace

c10::Event PeersLane::timed_event(const c10::Stream& stream) const {
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(stream);
  return event;
}

std::int64_t PeersLane::begin(Bytes bytes, const std::function<void(const c10::Stream&)>& enqueue) {
  forget_used();
  // High priority, so that its few thread blocks start before those of matrix products that wait
  // for a multiprocessor.
  if (!stream_) stream_ = bridge::pool_stream(device_, bridge::StreamPriority::kHigh);
  bridge::order(current(), *stream_);
  Begun begun{timed_event(*stream_), std::nullopt, std::nullopt, bytes};
  enqueue(*stream_);
  begun.ended.emplace(timed_event(*stream_));
  begun_.push_back(std::move(begun));
  return first_ + std::ssize(begun_) - 1;
}

void PeersLane::wait_for(std::int64_t number) {
  const std::int64_t place = number - first_;
  if (place < 0 || place >= std::ssize(begun_)) return;  // already joined
  Begun& begun = begun_[static_cast<std::size_t>(place)];
  if (!begun.computed) begun.computed.emplace(timed_event(current()));
  begun.ended->block(current());
}

bool PeersLane::wait_for_all() {
  if (begun_.empty()) return false;
  joined_.emplace(timed_event(current()));
  begun_.back().ended->block(current());
  return true;
}

void PeersLane::count_all() {
  const bool waited = begun_.back().computed.has_value();
  for (const Begun& begun : begun_) count(begun);
  if (!waited) use_ += {Bytes(), 0, std::max(0.0, seconds(*joined_, *begun_.back().ended))};
}

void PeersLane::clear() {
  first_ += std::ssize(begun_);
  begun_.clear();
  joined_.reset();
}

void PeersLane::count(const Begun& begun) {
  const double visible = begun.computed ? std::max(0.0, seconds(*begun.computed, *begun.ended)) : 0;
  const double all = seconds(begun.started, *begun.ended);
  use_ += {begun.bytes, all, std::min(visible, all)};
}

// Drops operations that were waited for and have ended: a pass starts thousands.
void PeersLane::forget_used() {
  while (!begun_.empty() && begun_.front().computed && begun_.front().computed->query() &&
         begun_.front().ended->query()) {
    count(begun_.front());
    begun_.pop_front();
    ++first_;
  }
}

}  // namespace neap::parallel
