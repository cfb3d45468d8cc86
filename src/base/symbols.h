// Functions of a library that is opened at run time.
//
// Threads   one.
#pragma once

#include <dlfcn.h>

namespace neap {

class Symbols {
 public:
  /// `library`: the result of dlopen.
  explicit Symbols(void* library) : library_(library) {}

  /// Sets `function` to the library's function, or to null.
  template <class F>
  void find(F& function, const char* name) {
    function = reinterpret_cast<F>(::dlsym(library_, name));
    if (function == nullptr && missing_ == nullptr) missing_ = name;
  }
  /// The first function that the library lacks; null: none.
  [[nodiscard]] const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

}  // namespace neap
