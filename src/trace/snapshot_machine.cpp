#include "trace/snapshot_machine.h"

#include <bit>

#include "base/format.h"
#include "trace/snapshot_opcodes.h"

namespace neap::trace::snapshot {
namespace {

// Names and messages of a trace are far shorter; longer text is skipped.
constexpr std::uint64_t kLongestText = 1U << 20;

}  // namespace

bool Machine::fail(const std::string& what, ErrorCode code) {
  if (failure_.ok()) {
    failure_ = Status(
        code, format("Snapshot {} cannot be read: at byte {} it {}", input_.name(), at_, what));
  }
  return false;
}

bool Machine::under_memory_limit() {
  const std::uint64_t used =
      store_.bytes() + memo_.bytes() + stack_.bytes() + marks_.capacity() * sizeof(std::size_t);
  if (Bytes(used) <= context_.memory_limit) return true;
  failure_ = over_memory_limit(input_, context_.memory_limit);
  return false;
}

bool Machine::more(std::size_t n) {
  if (!under_memory_limit()) return false;
  if (input_.ensure(n)) {
    if (context_.progress != nullptr) context_.progress->update(input_.consumed());
    return true;
  }
  if (!input_.status().ok()) {
    failure_ = input_.status();
    return false;
  }
  return fail("ends before its data does; the file is cut short");
}

static_assert(std::endian::native == std::endian::little);

bool Machine::push_integer(std::uint64_t size) {
  if (size > 9) {
    stack_.push({Tag::kHuge, 0});
    return input_.skip(size) || more(1);
  }
  const auto n = static_cast<std::size_t>(size);
  if (!need(n)) return false;
  if (n == 9) {
    const std::uint64_t low = number<8>();
    stack_.push(number<1>() == 0 ? store_.unsigned_integer(low) : Value(Tag::kHuge, 0));
    return true;
  }
  if (n == 0) {
    stack_.push({Tag::kInt, 0});
    return true;
  }
  // Input allows reading eight bytes at any position. Bytes beyond the n are shifted out.
  static_assert(Input::kPadding >= 8);
  std::uint64_t value = 0;
  std::memcpy(&value, input_.data(), 8);
  input_.advance(n);
  const unsigned shift = 64 - 8 * static_cast<unsigned>(n);
  value = static_cast<std::uint64_t>(static_cast<std::int64_t>(value << shift) >> shift);
  stack_.push(store_.integer(static_cast<std::int64_t>(value)));
  return true;
}

bool Machine::push_long_integer(std::uint64_t size) {
  if (size > 0x7FFFFFFF) return fail("has an integer of negative length");
  return push_integer(size);
}

bool Machine::push_text(std::uint64_t size) {
  if (size > kLongestText) {
    stack_.push({Tag::kOpaque, 0});
    return input_.skip(size) || more(1);
  }
  const auto n = static_cast<std::size_t>(size);
  if (!need(n)) return false;
  stack_.push(store_.text({reinterpret_cast<const char*>(input_.data()), n}));
  input_.advance(n);
  return true;
}

bool Machine::skip_bytes(std::uint64_t size) {
  stack_.push({Tag::kOpaque, 0});
  return input_.skip(size) || more(1);
}

bool Machine::put(std::uint64_t index) {
  if (!has(1)) return false;
  if (index >= memo_.size()) {
    // Picklers number memo entries from 0, and each takes at least a byte of the file.
    if (index > at_) return fail(format("puts memo entry {} though it has fewer objects", index));
    while (memo_.size() <= index) memo_.push({});
  }
  memo_[static_cast<std::size_t>(index)] = stack_.back();
  return true;
}

bool Machine::get(std::uint64_t index) {
  if (index >= memo_.size() || memo_[static_cast<std::size_t>(index)].tag() == Tag::kUnset)
    return fail(format("refers to memo entry {}, which does not exist", index));
  stack_.push(memo_[static_cast<std::size_t>(index)]);
  return true;
}

bool Machine::pop_mark(std::size_t& mark) {
  if (marks_.empty()) return fail("closes a group that was not opened");
  mark = marks_.back();
  marks_.pop_back();
  return true;
}

bool Machine::tuple(std::size_t n) {
  if (!has(n)) return false;
  Value made;
  if (!store_.new_tuple(stack_.from(stack_.size() - n), made)) return fail_from_store();
  stack_.cut(stack_.size() - n);
  stack_.push(made);
  return true;
}

bool Machine::append() {
  if (!has(2)) return false;
  if (!store_.append(stack_[stack_.size() - 2], stack_.from(stack_.size() - 1)))
    return fail_from_store();
  stack_.cut(stack_.size() - 1);
  return true;
}

bool Machine::set_item() {
  if (!has(3)) return false;
  if (!store_.set_items(stack_[stack_.size() - 3], stack_.from(stack_.size() - 2)))
    return fail_from_store();
  stack_.cut(stack_.size() - 2);
  return true;
}

bool Machine::container_from_mark(std::uint8_t op) {
  std::size_t mark = 0;
  if (!pop_mark(mark)) return false;
  const std::span<Value> items = stack_.from(mark);
  Value made;
  bool ok = true;
  switch (op) {
    case kTuple:
      ok = store_.new_tuple(items, made);
      break;
    case kList:
      made = store_.new_list();
      ok = store_.append(made, items);
      break;
    case kDict:
      if (items.size() % 2 != 0) return fail("has a dict key without a value");
      made = store_.new_dict();
      ok = store_.set_items(made, items);
      break;
    case kAppends:
      // The list is below the mark, in the group that the mark interrupted.
      if (mark <= (marks_.empty() ? 0 : marks_.back()))
        return fail("appends to a list that is not there");
      made = stack_[mark - 1];
      ok = store_.append(made, items);
      --mark;
      break;
    default:  // kSetItems
      if (mark <= (marks_.empty() ? 0 : marks_.back()))
        return fail("fills a dict that is not there");
      if (items.size() % 2 != 0) return fail("has a dict key without a value");
      made = stack_[mark - 1];
      ok = store_.set_items(made, items);
      --mark;
      break;
  }
  if (!ok) return fail_from_store();
  stack_.cut(mark);
  stack_.push(made);
  return true;
}

bool Machine::pop() {
  if (!marks_.empty() && marks_.back() == stack_.size()) {
    marks_.pop_back();
    return true;
  }
  if (!has(1)) return false;
  stack_.cut(stack_.size() - 1);
  return true;
}

bool Machine::check_protocol(std::uint64_t protocol) {
  if (protocol >= 2 && protocol <= 5) return true;
  return fail(format("is a pickle of protocol {}; 2 to 5 are known", protocol),
              ErrorCode::kUnsupported);
}

bool Machine::stop() {
  if (!marks_.empty()) return fail("stops inside a group");
  if (!has(1)) return false;
  done_ = true;
  return false;
}

bool Machine::refuse(std::uint8_t op) {
  switch (op) {
    case 'c':
    case 'i':
    case 'o':
    case 'R':
    case 'b':
    case 'P':
    case 'Q':  // NOLINT
    case 0x81:
    case 0x82:
    case 0x83:
    case 0x84:
    case 0x92:
    case 0x93:
      return fail(format("asks to import or call Python code (instruction 0x{:02x}); memory "
                         "snapshots are plain data, and nothing was executed",
                         op),
                  ErrorCode::kUnsupported);
    case 'I':
    case 'L':
    case 'F':
    case 'S':
    case 'V':
    case 'p':
    case 'g':
      return fail(format("uses the text instruction '{}' of protocol 0, which PyTorch does not "
                         "write",
                         static_cast<char>(op)),
                  ErrorCode::kUnsupported);
    default:
      return fail(format("has 0x{:02x}, which is not an instruction for data", op));
  }
}

// Always inlined into the loop below, its only caller. It handles the most frequent instructions of
// recordings.
[[gnu::always_inline]] inline bool Machine::step() {
  at_ = input_.position();
  if (!need(1)) return false;
  const auto op = static_cast<std::uint8_t>(number<1>());
  switch (op) {
    case kBinGet:
      return need(1) && get(number<1>());
    case kLongBinGet:
      return need(4) && get(number<4>());
    case kMemoize:
      if (!has(1)) return false;
      memo_.push(stack_.back());
      return true;
    case kBinPut:
      return need(1) && put(number<1>());
    case kLongBinPut:
      return need(4) && put(number<4>());
    case kBinInt1:
      return need(1) && push({Tag::kInt, number<1>()});
    case kBinInt2:
      return need(2) && push({Tag::kInt, number<2>()});
    case kBinInt:
      return need(4) && push_integer(4);
    case kLong1:
      return need(1) && push_integer(number<1>());
    case kShortBinUnicode:
    case kShortBinString:
    case kShortBinBytes:
      return need(1) && push_text(number<1>());
    case kBinUnicode:
    case kBinString:
      return need(4) && push_text(number<4>());
    case kNone:
      return push({Tag::kNone, 0});
    case kNewTrue:
      return push({Tag::kTrue, 0});
    case kNewFalse:
      return push({Tag::kFalse, 0});
    case kMark:
      marks_.push_back(stack_.size());
      return true;
    case kEmptyDict:
      return push(store_.new_dict());
    case kEmptyList:
      return push(store_.new_list());
    case kTuple2:
      return tuple(2);
    case kTuple:
    case kList:
    case kDict:
    case kAppends:
    case kSetItems:
      return container_from_mark(op);
    case kAppend:
      return append();
    case kSetItem:
      return set_item();
    default:
      return step_rare(op);
  }
}

// Handles rare instructions, outside of the loop above to keep the loop small.
bool Machine::step_rare(std::uint8_t op) {
  switch (op) {
    case kProto:
      return need(1) && check_protocol(number<1>());
    case kFrame:  // a hint for buffering readers
      if (!need(8)) return false;
      input_.advance(8);
      return true;
    case kLong4:
      return need(4) && push_long_integer(number<4>());
    case kBinFloat:
      return need(8) && push(store_.real(std::bit_cast<double>(__builtin_bswap64(number<8>()))));
    case kBinUnicode8:
      return need(8) && push_text(number<8>());
    case kBinBytes:
      return need(4) && skip_bytes(number<4>());
    case kBinBytes8:
    case kByteArray8:
      return need(8) && skip_bytes(number<8>());
    case kEmptyTuple:
      return tuple(0);
    case kTuple1:
      return tuple(1);
    case kTuple3:
      return tuple(3);
    case kDup:
      return has(1) && push(Value(stack_.back()));
    case kPop:
      return pop();
    case kPopMark: {
      std::size_t mark = 0;
      if (!pop_mark(mark)) return false;
      stack_.cut(mark);
      return true;
    }
    case kStop:
      return stop();
    default:
      return refuse(op);
  }
}

Result<Value> Machine::run() {
  while (step()) {
  }
  if (!done_) return failure_;
  Value top = stack_.back();
  if (!store_.settle(top)) {
    (void)fail_from_store();
    return failure_;
  }
  if (!under_memory_limit()) return failure_;
  return top;
}

}  // namespace neap::trace::snapshot
