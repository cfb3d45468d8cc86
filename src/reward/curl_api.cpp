#include "reward/curl_api.h"

#include <dlfcn.h>

#include "base/format.h"
#include "base/symbols.h"

namespace neap::reward {
namespace {

Status fill(CurlApi& api) {
  // Never unload: libcurl and its TLS library have state until the process ends.
  void* library = ::dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return {ErrorCode::kUnsupported,
            format("HTTP needs libcurl.so.4 (Debian's package libcurl4): {}", ::dlerror())};
  }
  Symbols symbols(library);
  symbols.find(api.easy_init, "curl_easy_init");
  symbols.find(api.easy_cleanup, "curl_easy_cleanup");
  symbols.find(api.easy_setopt, "curl_easy_setopt");
  symbols.find(api.easy_getinfo, "curl_easy_getinfo");
  symbols.find(api.easy_strerror, "curl_easy_strerror");
  symbols.find(api.multi_init, "curl_multi_init");
  symbols.find(api.multi_cleanup, "curl_multi_cleanup");
  symbols.find(api.multi_add_handle, "curl_multi_add_handle");
  symbols.find(api.multi_remove_handle, "curl_multi_remove_handle");
  symbols.find(api.multi_perform, "curl_multi_perform");
  symbols.find(api.multi_poll, "curl_multi_poll");
  symbols.find(api.multi_info_read, "curl_multi_info_read");
  symbols.find(api.slist_append, "curl_slist_append");
  symbols.find(api.slist_free_all, "curl_slist_free_all");
  decltype(&::curl_global_init) global_init = nullptr;
  symbols.find(global_init, "curl_global_init");
  if (symbols.missing() != nullptr)
    return {ErrorCode::kUnsupported,
            format("libcurl.so.4 has no {}; 7.66 or newer is needed", symbols.missing())};
  if (global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
    return {ErrorCode::kUnsupported, "libcurl does not start"};
  return {};
}

}  // namespace

Result<const CurlApi*> CurlApi::load() {
  static CurlApi api;
  static const Status kLoaded = fill(api);
  if (!kLoaded.ok()) return Status(kLoaded);
  return static_cast<const CurlApi*>(&api);
}

}  // namespace neap::reward
