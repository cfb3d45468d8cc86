// The stack machine of Python's pickles, protocols 2 to 5, restricted to data. Every instruction
// that would import, call or build an object is rejected.
//
// Failure   kCorrupt or kUnsupported with the byte; kOutOfHostMemory over the limit.
//
// Cost      some nanoseconds per instruction. Memory is proportional to the bytes read, whatever
//           lengths a file claims.
#pragma once

#include <cstdlib>
#include <span>
#include <vector>

#include "trace/formats.h"
#include "trace/snapshot_store.h"

namespace neap::trace::snapshot {

/// A vector of values that grows without touching its new half: on Linux large blocks are moved by
/// their page tables. Its push inlines to a compare and a store.
class ValueStack {
 public:
  ValueStack() { grow(); }
  ValueStack(const ValueStack&) = delete;
  ValueStack& operator=(const ValueStack&) = delete;
  ~ValueStack() { std::free(values_); }
  void push(Value v) {
    if (size_ == capacity_) grow();
    values_[size_++] = v;
  }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] Value& back() { return values_[size_ - 1]; }
  [[nodiscard]] Value& operator[](std::size_t i) { return values_[i]; }
  void cut(std::size_t size) { size_ = size; }
  [[nodiscard]] std::span<Value> from(std::size_t i) { return {values_ + i, size_ - i}; }
  [[nodiscard]] std::size_t bytes() const { return size_ * sizeof(Value); }

 private:
  void grow() {
    capacity_ = capacity_ == 0 ? 4096 : capacity_ * 2;
    void* const moved = std::realloc(static_cast<void*>(values_), capacity_ * sizeof(Value));
    if (moved == nullptr) std::abort();  // as operator new would end in this code
    values_ = static_cast<Value*>(moved);
  }
  Value* values_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

class Machine {
 public:
  Machine(Input& input, Store& store, const ReadContext& context)
      : input_(input), store_(store), context_(context) {}
  /// Runs to STOP and returns the pickled value, settled.
  [[nodiscard]] Result<Value> run();

 private:
  /// Executes one instruction. False with failure_ set, or at the end with done_ set.
  [[nodiscard]] bool step();
  [[nodiscard]] bool step_rare(std::uint8_t op);
  [[nodiscard]] bool need(std::size_t n) { return input_.available() >= n || more(n); }
  [[nodiscard]] bool more(std::size_t n);
  [[nodiscard]] bool fail(const std::string& what, ErrorCode code = ErrorCode::kCorrupt);
  [[nodiscard]] bool fail_from_store() { return fail(store_.error()); }
  [[nodiscard]] bool under_memory_limit();

  /// Reads an unsigned number of N bytes. need() must have checked them.
  template <std::size_t N>
  [[nodiscard]] std::uint64_t number() {
    std::uint64_t value = 0;
    std::memcpy(&value, input_.data(), N);  // both the machine and the format are little-endian
    input_.advance(N);
    return value;
  }
  [[nodiscard]] bool push(Value value) {
    stack_.push(value);
    return true;
  }
  [[nodiscard]] bool push_integer(std::uint64_t size);
  [[nodiscard]] bool push_long_integer(std::uint64_t size);
  [[nodiscard]] bool push_text(std::uint64_t size);
  [[nodiscard]] bool skip_bytes(std::uint64_t size);
  [[nodiscard]] bool put(std::uint64_t index);
  [[nodiscard]] bool get(std::uint64_t index);
  [[nodiscard]] bool pop();
  [[nodiscard]] bool pop_mark(std::size_t& mark);
  [[nodiscard]] bool has(std::size_t n) {
    return stack_.size() - (marks_.empty() ? 0 : marks_.back()) >= n ||
           fail("takes more from the stack than is there");
  }
  [[nodiscard]] bool tuple(std::size_t n);
  [[nodiscard]] bool container_from_mark(std::uint8_t op);
  [[nodiscard]] bool append();
  [[nodiscard]] bool set_item();
  [[nodiscard]] bool check_protocol(std::uint64_t protocol);
  /// Ends the pickle: sets done_ and returns false, as a failure does.
  [[nodiscard]] bool stop();
  [[nodiscard]] bool refuse(std::uint8_t op);

  Input& input_;
  Store& store_;
  const ReadContext& context_;
  ValueStack stack_;
  std::vector<std::size_t> marks_;
  ValueStack memo_;
  std::uint64_t at_ = 0;  ///< offset of the instruction, for messages
  bool done_ = false;
  Status failure_;
};

}  // namespace neap::trace::snapshot
