// A thread's CUDA tensors in a region of the memory plan, in place of libtorch's own memory. The first scope replaces
// the allocator in libtorch's slot by one that forwards all other requests.
//
// Threads   any; a scope belongs to its thread, which may have one.
// Failure   neap::Error; c10::OutOfMemoryError if a region is too small.
// Cost      about 100 ns per request.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "step/counting/scratch_places.h"

namespace neap::bridge {

/// A region for the temporaries of a step.
class CudaScratch {
 public:
  /// `region`: contiguous bytes on a GPU.
  explicit CudaScratch(at::Tensor region);
  CudaScratch(const CudaScratch&) = delete;
  CudaScratch& operator=(const CudaScratch&) = delete;
  ~CudaScratch() = default;

  /// While it lives, CUDA tensors of this thread come from the region, from its start on. They must
  /// be freed before the scope ends.
  class Scope {
   public:
    explicit Scope(CudaScratch& scratch);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();
  };

  [[nodiscard]] at::Device device() const { return region_.device(); }
  /// The bytes used so far.
  [[nodiscard]] std::uint64_t extent() const { return places_.extent(); }
  /// Whether all tensors of the scopes have been freed.
  [[nodiscard]] bool idle() const { return places_.live() == 0; }

  // ---- for the allocator ----
  [[nodiscard]] void* allocate(std::size_t bytes);
  /// Whether the address is one of the region.
  bool free(void* address);
  [[nodiscard]] bool holds(const void* address) const;

 private:
  at::Tensor region_;
  std::uintptr_t first_;
  std::uint64_t bytes_;
  step::ScratchPlaces places_;
};

}  // namespace neap::bridge
