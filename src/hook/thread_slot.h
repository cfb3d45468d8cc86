// A thread-local object that is usable during process teardown.
//
// A plain thread_local with a destructor must not be used after its thread has begun to end. But
// static destructors of other libraries free GPU memory at that time. This object is then created
// again, and leaks.
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
  /// Null if the thread has not created it yet.
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
