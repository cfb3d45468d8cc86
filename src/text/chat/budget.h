// What one rendering may use: steps of work and bytes of memory. Strings and vectors of this header take their
// memory from a Budget and cannot be made without one, so that every value of a template is counted.
//
// Threads   one. A Budget outlives what was made with it.
// Failure   TemplateError; containers keep their contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace neap::chat {

/// What ends a rendering; the interpreter adds the line. Never leaves the module.
class TemplateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  int line = 0;  ///< 0: not known yet
};
/// Throws a TemplateError; `what` is cut at 4 KiB.
[[noreturn]] void fail(std::string_view what);

inline constexpr std::int64_t kMaxSteps = 20'000'000;
inline constexpr std::size_t kMaxMemoryBytes = std::size_t{256} << 20;
/// Texts longer than this fail.
inline constexpr std::size_t kMaxText = std::size_t{64} << 20;

class Budget {
 public:
  Budget(std::int64_t steps, std::size_t bytes) : steps_left_(steps), bytes_left_(bytes) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  void spend(std::size_t steps) {
    steps_left_ -= static_cast<std::int64_t>(steps);
    if (steps_left_ < 0) fail_steps();
  }
  /// The steps of reading `bytes` of text.
  void read(std::size_t bytes) { spend(1 + bytes / 64); }
  /// Memory, and the steps of filling it.
  void take(std::size_t bytes) {
    spend(1 + bytes / 256);
    if (bytes > bytes_left_) fail_bytes();
    bytes_left_ -= bytes;
  }
  void give_back(std::size_t bytes) noexcept { bytes_left_ += bytes; }

 private:
  [[noreturn]] static void fail_steps();
  [[noreturn]] static void fail_bytes();
  std::int64_t steps_left_;
  std::size_t bytes_left_;
};

/// An allocator that takes its memory from a Budget.
template <class T>
class Counted {
 public:
  using value_type = T;
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  Counted(Budget& budget) : budget_(&budget) {}  // NOLINT(google-explicit-constructor)
  template <class U>
  Counted(const Counted<U>& other) : budget_(&other.budget()) {}  // NOLINT
  [[nodiscard]] T* allocate(std::size_t n) {
    budget_->take(bytes(n));
    try {
      return std::allocator<T>().allocate(n);
    } catch (...) {
      budget_->give_back(bytes(n));
      throw;
    }
  }
  void deallocate(T* p, std::size_t n) noexcept {
    std::allocator<T>().deallocate(p, n);
    budget_->give_back(bytes(n));
  }
  [[nodiscard]] Budget& budget() const { return *budget_; }
  friend bool operator==(const Counted& a, const Counted& b) { return a.budget_ == b.budget_; }

 private:
  static constexpr std::size_t kHeaderBytes = 16;  // of malloc
  static std::size_t bytes(std::size_t n) { return n * sizeof(T) + kHeaderBytes; }
  Budget* budget_;
};

using String = std::basic_string<char, std::char_traits<char>, Counted<char>>;
template <class T>
using Vector = std::vector<T, Counted<T>>;

/// Characters that do not change. Copies and parts share them.
class Text {
 public:
  Text() = default;
  /// Of characters that outlive the rendering: a literal, the template's source, the caller's JSON.
  static Text outside(std::string_view characters) {
    Text made;
    made.view_ = characters;
    return made;
  }
  static Text copy(std::string_view characters, Budget& budget) {
    return characters.empty() ? Text() : Text(String(characters, budget));
  }
  Text(String made);  // NOLINT(google-explicit-constructor)
  [[nodiscard]] Text part(std::size_t begin, std::size_t bytes = std::string_view::npos) const {
    Text made = *this;
    made.view_ = view_.substr(begin, bytes);
    return made;
  }
  [[nodiscard]] std::string_view view() const { return view_; }
  operator std::string_view() const { return view_; }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] std::size_t size() const { return view_.size(); }
  [[nodiscard]] bool empty() const { return view_.empty(); }
  friend bool operator<(const Text& a, const Text& b) { return a.view_ < b.view_; }
  friend bool operator<(const Text& a, std::string_view b) { return a.view_ < b; }
  friend bool operator<(std::string_view a, const Text& b) { return a < b.view_; }

 private:
  std::string_view view_;
  std::shared_ptr<const String> owner_;  // null: outside
};

}  // namespace neap::chat
