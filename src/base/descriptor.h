// Owns a file descriptor of a file, socket or event. A negative value means none.
//
// Threads   values.
//
// Failure   none: errors of close() are ignored.
#pragma once

#include <unistd.h>

#include <utility>

namespace neap {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.take()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = other.take();
    }
    return *this;
  }
  ~Descriptor() { close(); }

  [[nodiscard]] int get() const { return fd_; }
  /// The caller closes it.
  [[nodiscard]] int take() { return std::exchange(fd_, -1); }

 private:
  void close() const {
    if (fd_ >= 0) ::close(fd_);
  }

  int fd_ = -1;
};

}  // namespace neap
