// cuBLASLt's C interface, from the library that libtorch has loaded.
//
// Threads   any.
// Failure   kUnsupported if no such library is loaded, or if it has other functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace neap::kernels::cublaslt {

using Handle = void*;
using Object = void*;  ///< a description of a product or matrix, or a preference

// Values of cublasLt.h.
constexpr int kFloat32 = 0, kBFloat16 = 14;  // of a matrix
constexpr int kSumsInFloat32 = 68;
constexpr int kTransposeA = 3, kTransposeB = 4;  // attributes of a product
constexpr int kEpilogue = 7, kBias = 8;
constexpr int kAddsBias = 4;                            // an epilogue
constexpr int kReductions = 3, kFirstOfAlignments = 5;  // attributes of a preference
constexpr int kAlgorithm = 0, kSplits = 2;              // attributes of an algorithm

struct Algorithm {
  std::array<std::uint64_t, 8> opaque;
};
struct Offer {
  Algorithm algorithm;
  std::size_t workspace_bytes;
  int status;
  float waves;
  std::array<int, 4> reserved;
};

struct Api {
  int (*create)(Handle*);
  int (*product_create)(Object* product, int sums, int scale_type);
  int (*product_set)(Object product, int attribute, const void* value, std::size_t bytes);
  int (*matrix_create)(Object* matrix, int type, std::uint64_t rows, std::uint64_t columns,
                       std::int64_t stride);
  int (*preference_create)(Object* preference);
  int (*preference_set)(Object preference, int attribute, const void* value, std::size_t bytes);
  int (*preference_destroy)(Object preference);
  int (*offers)(Handle handle, Object product, Object a, Object b, Object c, Object d,
                Object preference, int most, Offer* offers, int* count);
  int (*algorithm_get)(const Algorithm* algorithm, int attribute, void* value, std::size_t bytes,
                       std::size_t* written);
  int (*multiply)(Handle handle, Object product, const void* alpha, const void* a, Object a_matrix,
                  const void* b, Object b_matrix, const void* beta, const void* c, Object c_matrix,
                  void* d, Object d_matrix, const Algorithm* algorithm, void* workspace,
                  std::size_t workspace_bytes, void* stream);
};

[[nodiscard]] Result<const Api*> load_cublaslt();

}  // namespace neap::kernels::cublaslt
