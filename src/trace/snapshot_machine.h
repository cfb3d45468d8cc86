// The stack machine of Python's pickles, protocols 2 to 5, restricted to data: every instruction
// that would import, call or build an object is refused.
//
// Failure   kCorrupt or kUnsupported with the byte; kOutOfHostMemory over the limit.
// Cost      some nanoseconds an instruction; memory follows the bytes read, whatever lengths a
//           file claims.
#pragma once

#include <vector>

#include "trace/formats.h"
#include "trace/snapshot_store.h"

namespace neap::trace::snapshot {

class Machine {
 public:
  Machine(Input& input, Store& store, const ReadContext& context)
      : input_(input), store_(store), context_(context) {}
  /// Runs to STOP; the pickled value, settled.
  [[nodiscard]] Result<Value> run();

 private:
  /// One instruction; false with failure_ set, or at the end with done_.
  [[nodiscard]] bool step();
  [[nodiscard]] bool need(std::size_t n) { return input_.available() >= n || more(n); }
  [[nodiscard]] bool more(std::size_t n);
  [[nodiscard]] bool fail(std::string what, ErrorCode code = ErrorCode::kCorrupt);
  [[nodiscard]] bool fail_from_store() { return fail(store_.error()); }
  [[nodiscard]] bool under_memory_limit();

  [[nodiscard]] std::uint64_t little_endian(std::size_t n);
  [[nodiscard]] bool push_integer(std::uint64_t size);
  [[nodiscard]] bool push_text(std::size_t length_size);
  [[nodiscard]] bool skip_bytes(std::size_t length_size);
  [[nodiscard]] bool put(std::uint64_t index);
  [[nodiscard]] bool get(std::uint64_t index);
  [[nodiscard]] bool pop_mark(std::size_t& mark);
  [[nodiscard]] bool has(std::size_t n) {
    return stack_.size() - (marks_.empty() ? 0 : marks_.back()) >= n ||
           fail("takes more from the stack than is there");
  }
  [[nodiscard]] bool tuple(std::size_t n);
  [[nodiscard]] bool container_from_mark(std::uint8_t op);
  [[nodiscard]] bool refuse(std::uint8_t op);

  Input& input_;
  Store& store_;
  const ReadContext& context_;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Value> memo_;
  std::uint64_t at_ = 0;  ///< offset of the instruction, for messages
  bool done_ = false;
  Status failure_;
};

}  // namespace neap::trace::snapshot
