// A tensor that has only a size and a lifetime.
//
// Threads   a sink and its tensors belong to one thread.
// Failure   none; a sink that runs out of memory records it, and returns meaningless addresses.
#pragma once

#include <cstdint>
#include <utility>

#include "step/operations/operations.h"

namespace neap::step {

/// Receives the requests of counted tensors.
class MemorySink {
 public:
  virtual ~MemorySink() = default;
  /// `bytes` > 0.
  [[nodiscard]] virtual std::uint64_t allocate(std::int64_t bytes) = 0;
  virtual void release(std::uint64_t address) = 0;
};

/// A tensor without contents.
class CountedTensor {
 public:
  CountedTensor() = default;
  CountedTensor(const CountedTensor& o)
      : storage_(o.storage_), shape_(o.shape_), dtype_(o.dtype_), defined_(o.defined_) {
    if (storage_ != nullptr) ++storage_->holders;
  }
  CountedTensor(CountedTensor&& o) noexcept { swap(o); }
  CountedTensor& operator=(CountedTensor o) noexcept {
    swap(o);
    return *this;
  }
  ~CountedTensor() {
    if (storage_ != nullptr && --storage_->holders == 0) free_storage();
  }

  [[nodiscard]] bool defined() const { return defined_; }
  [[nodiscard]] std::int64_t size(std::int64_t dimension) const { return shape_[dimension]; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] Dtype dtype() const { return dtype_; }
  [[nodiscard]] std::int64_t bytes() const { return shape_.elements() * element_bytes(dtype_); }

  /// A tensor whose memory exists anyway (weights, the KV cache, host tensors), so nothing is
  /// requested.
  [[nodiscard]] static CountedTensor outside(const Shape& shape, Dtype dtype) {
    CountedTensor t;
    t.shape_ = shape;
    t.dtype_ = dtype;
    t.defined_ = true;
    return t;
  }

 private:
  friend class CountingBase;
  struct Storage {
    MemorySink* sink;
    std::uint64_t address;
    std::int64_t holders;
  };
  void swap(CountedTensor& o) noexcept {
    std::swap(storage_, o.storage_);
    std::swap(shape_, o.shape_);
    std::swap(dtype_, o.dtype_);
    std::swap(defined_, o.defined_);
  }
  // Not inlined, because GCC would warn of uses after free that the reference count rules out.
  [[gnu::noinline]] void free_storage();
  Storage* storage_ = nullptr;
  Shape shape_;
  Dtype dtype_ = Dtype::kFloat32;
  bool defined_ = false;
};

[[nodiscard]] inline double bytes(const CountedTensor& t) {
  return t.defined() ? static_cast<double>(t.bytes()) : 0;
}

}  // namespace neap::step
