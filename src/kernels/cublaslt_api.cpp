#include "kernels/cublaslt_api.h"

#include <dlfcn.h>

#include <string>

#include "base/format.h"

namespace neap::kernels::cublaslt {
namespace {

void* loaded_library() {
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"})
    if (void* const library = dlopen(name, RTLD_NOW | RTLD_NOLOAD); library != nullptr)
      return library;
  return nullptr;
}

Result<Api> open() {
  void* const library = loaded_library();
  if (library == nullptr) return Status(ErrorCode::kUnsupported, "libcublasLt is not loaded");
  Api api{};
  std::string missing;
  const auto find = [&]<class F>(F& function, const char* name) {
    void* const symbol = dlsym(library, name);
    if (symbol == nullptr) missing = name;
    function = reinterpret_cast<F>(symbol);
  };
  find(api.create, "cublasLtCreate");
  find(api.product_create, "cublasLtMatmulDescCreate");
  find(api.product_set, "cublasLtMatmulDescSetAttribute");
  find(api.matrix_create, "cublasLtMatrixLayoutCreate");
  find(api.preference_create, "cublasLtMatmulPreferenceCreate");
  find(api.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(api.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(api.offers, "cublasLtMatmulAlgoGetHeuristic");
  find(api.algorithm_get, "cublasLtMatmulAlgoConfigGetAttribute");
  find(api.multiply, "cublasLtMatmul");
  if (!missing.empty())
    return Status(ErrorCode::kUnsupported, format("libcublasLt has no {}: too old", missing));
  return api;
}

}  // namespace

Result<const Api*> load_cublaslt() {
  static const Result<Api> kApi = open();
  if (!kApi.ok()) return Status(kApi.status());
  return &kApi.value();
}

}  // namespace neap::kernels::cublaslt
