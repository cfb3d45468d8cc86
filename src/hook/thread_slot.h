// A thread's own object that may be asked for even while the process is being taken down.
//
// A plain thread_local with a destructor is undefined after its thread's end has begun, and static
// destructors of other libraries do free GPU memory then. This one is born again (and then leaks).
#pragma once

namespace neap::hook {

template <class T>
class ThreadSlot {
 public:
  static T& get() {
    if (object_ == nullptr) {
      object_ = new T();
      static thread_local Reaper reaper;
      reaper.armed = true;
    }
    return *object_;
  }
  /// Null when the thread has none yet.
  static T* peek() { return object_; }

 private:
  struct Reaper {
    bool armed = false;
    ~Reaper() {
      delete object_;
      object_ = nullptr;
    }
  };
  static inline thread_local T* object_ = nullptr;
};

}  // namespace neap::hook
