#include "reward/curl_api.h"

#include <dlfcn.h>

#include <string>
#include <type_traits>

#include "base/format.h"

namespace neap::reward {
namespace {

Status fill(CurlApi& api) {
  // Never unload: libcurl and its TLS library have state until the process ends.
  void* library = ::dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return {ErrorCode::kUnsupported,
            format("HTTP needs libcurl.so.4 (Debian's package libcurl4): {}", ::dlerror())};
  }
  std::string missing;
  const auto bind = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  bind(api.easy_init, "curl_easy_init");
  bind(api.easy_cleanup, "curl_easy_cleanup");
  bind(api.easy_setopt, "curl_easy_setopt");
  bind(api.easy_getinfo, "curl_easy_getinfo");
  bind(api.easy_strerror, "curl_easy_strerror");
  bind(api.multi_init, "curl_multi_init");
  bind(api.multi_cleanup, "curl_multi_cleanup");
  bind(api.multi_add_handle, "curl_multi_add_handle");
  bind(api.multi_remove_handle, "curl_multi_remove_handle");
  bind(api.multi_perform, "curl_multi_perform");
  bind(api.multi_poll, "curl_multi_poll");
  bind(api.multi_info_read, "curl_multi_info_read");
  bind(api.slist_append, "curl_slist_append");
  bind(api.slist_free_all, "curl_slist_free_all");
  decltype(&::curl_global_init) global_init = nullptr;
  bind(global_init, "curl_global_init");
  if (!missing.empty())
    return {ErrorCode::kUnsupported,
            format("libcurl.so.4 has no {}; 7.66 or newer is needed", missing)};
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
