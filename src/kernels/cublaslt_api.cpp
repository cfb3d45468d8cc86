#include "kernels/cublaslt_api.h"

#include <dlfcn.h>

#include "base/format.h"
#include "base/symbols.h"

namespace neap::kernels::cublaslt {
namespace {

void* loaded_library() {
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"})
    if (void* const library = dlopen(name, RTLD_NOW | RTLD_NOLOAD); library != nullptr)
      return library;
  return nullptr;
}

Result<Api> open_cublaslt() {
  void* const library = loaded_library();
  if (library == nullptr) return Status(ErrorCode::kUnsupported, "libcublasLt is not loaded");
  Api api{};
  Symbols symbols(library);
  symbols.find(api.create, "cublasLtCreate");
  symbols.find(api.product_create, "cublasLtMatmulDescCreate");
  symbols.find(api.product_set, "cublasLtMatmulDescSetAttribute");
  symbols.find(api.matrix_create, "cublasLtMatrixLayoutCreate");
  symbols.find(api.preference_create, "cublasLtMatmulPreferenceCreate");
  symbols.find(api.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  symbols.find(api.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  symbols.find(api.offers, "cublasLtMatmulAlgoGetHeuristic");
  symbols.find(api.algorithm_get, "cublasLtMatmulAlgoConfigGetAttribute");
  symbols.find(api.multiply, "cublasLtMatmul");
  if (symbols.missing() != nullptr)
    return Status(ErrorCode::kUnsupported,
                  format("libcublasLt has no {}: too old", symbols.missing()));
  return api;
}

}  // namespace

Result<const Api*> load_cublaslt() {
  static const Result<Api> kApi = open_cublaslt();
  if (!kApi.ok()) return Status(kApi.status());
  return &kApi.value();
}

}  // namespace neap::kernels::cublaslt
