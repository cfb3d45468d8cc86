// Products of large bfloat16 matrices by the fastest of cuBLASLt's algorithms.
//
// Model     Algorithms that do not split the depth add in the same order, whatever their tiles are,
//           so all have the same bits (bench/results/engine-row-bits-h100.jsonl). The first calls of
//           a shape use them in turn, and each call is timed by events that are read later. Then the
//           fastest one is kept. Results do not depend on it.
// Threads   any; one at a time.
// Failure   kUnsupported without the library. Callers then use libtorch.
// Cost      no wait, and no device memory but the driver's for the algorithms' kernels. A captured
//           call uses the fastest one so far.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "device/cuda/context.h"
#include "kernels/cublaslt_api.h"

namespace neap::kernels {

/// A row-major matrix or the transpose of one. `stride`: elements between neighbouring rows of that
/// row-major matrix.
struct Factor {
  std::int64_t stride = 0;
  bool transposed = false;
  friend auto operator<=>(const Factor&, const Factor&) = default;
};

/// out (rows, columns) = alpha a (rows, depth) b (depth, columns), plus `out` if `adds` and plus a row
/// (columns,) if `bias`. `out` is row-major.
struct ProductShape {
  std::int64_t rows = 0, columns = 0, depth = 0;
  Factor a, b;
  std::int64_t out_stride = 0;
  bool float32 = false;  ///< out; else bfloat16
  bool adds = false;
  bool bias = false;             ///< bfloat16
  std::uint32_t alignment = 16;  ///< bytes, of all addresses
  friend auto operator<=>(const ProductShape&, const ProductShape&) = default;
};

class TunedProducts {
 public:
  /// The products of the GPU with this number. They belong to the process, as the library's handle
  /// does.
  [[nodiscard]] static Result<TunedProducts*> of(int ordinal);

  TunedProducts(const cublaslt::Api& api, const device::cuda::Card& card, cublaslt::Handle handle)
      : api_(api), card_(card), handle_(handle) {}

  struct Operands {
    float alpha = 1;
    const void *a = nullptr, *b = nullptr, *bias = nullptr;
    void* out = nullptr;
  };
  /// Queues the product. False: the library has no algorithm for the shape.
  [[nodiscard]] Result<bool> multiply(const ProductShape& shape, const Operands& by,
                                      device::cuda::Stream stream);

 private:
  struct Choice {
    cublaslt::Algorithm algorithm{};
    std::vector<float> milliseconds{};  // of timed calls
  };
  struct Timed {
    std::size_t choice;
    device::cuda::Event begin, end;
  };
  // A product as the library sees it: column by column, so its first factor is b.
  struct Product {
    cublaslt::Object description = nullptr, first = nullptr, second = nullptr, out = nullptr;
    std::vector<Choice> choices;  // best first
    std::size_t calls = 0;        // timed ones
    std::deque<Timed> running;    // calls whose times are not read yet
    bool tuned = false;
  };
  [[nodiscard]] Result<Product*> find(const ProductShape& shape);
  [[nodiscard]] Result<Product> describe(const ProductShape& shape) const;
  [[nodiscard]] Status offer(const ProductShape& shape, Product& product) const;
  [[nodiscard]] Status run(const ProductShape& shape, const Product& product, std::size_t choice,
                           const Operands& by, device::cuda::Stream stream) const;
  /// run() with the next choice, between two events.
  [[nodiscard]] Status run_timed(const ProductShape& shape, Product& product, const Operands& by,
                                 device::cuda::Stream stream) const;
  /// Reads the times of calls that have ended, and chooses if all are there.
  [[nodiscard]] Status read_times(Product& product) const;
  [[nodiscard]] Result<bool> is_captured(device::cuda::Stream stream) const;

  const cublaslt::Api& api_;
  device::cuda::Card card_;
  cublaslt::Handle handle_;
  std::mutex mutex_;
  std::map<ProductShape, Product> products_;
};

}  // namespace neap::kernels
