#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "trace/formats.h"
#include "trace/wire_format.h"

namespace neap::trace {
namespace {

using wire::BlockType;
using wire::Decoder;

std::uint32_t le32(const std::uint8_t* at) {
  return static_cast<std::uint32_t>(at[0]) | static_cast<std::uint32_t>(at[1]) << 8 |
         static_cast<std::uint32_t>(at[2]) << 16 | static_cast<std::uint32_t>(at[3]) << 24;
}

class NeapReader {
 public:
  NeapReader(Input& input, const ReadContext& context) : input_(input), context_(context) {
    out_.source = Source::kNeap;
  }

  Result<Recording> run();

 private:
  Status corrupt(const std::string& what) const;
  Status read_file_header();
  /// Handles the end of a file whose writer was killed: accepts it with a note.
  bool cut(std::uint64_t lost);
  Result<bool> read_block();
  Result<bool> cut_by_zeros();
  Status charge(std::uint64_t bytes);
  Status take(BlockType type, std::span<const std::uint8_t> payload);
  /// Reads a block. False if it violates the grammar; nothing for an unknown type.
  std::optional<bool> take(BlockType type, Decoder& in);
  bool take_start(Decoder& in);
  bool take_metadata(Decoder& in);
  void set_metadata(std::string_view key, std::string_view value);
  bool take_names(Decoder& in);
  bool take_frames(Decoder& in);
  bool take_stacks(Decoder& in);
  bool take_pools(Decoder& in);
  bool take_device(Decoder& in);
  bool take_segments(Decoder& in);
  bool take_blocks(Decoder& in);
  bool take_warnings(Decoder& in);
  bool take_end(Decoder& in);
  bool take_settings(Decoder& in);
  Status take_events(std::span<const std::uint8_t> payload);
  Status check_device(DeviceRecording& d) const;
  DeviceRecording& device(std::uint64_t ordinal);

  Input& input_;
  const ReadContext& context_;
  Recording out_;
  std::map<std::uint16_t, DeviceRecording> devices_;  // a map, to keep addresses stable
  DeviceRecording* last_device_ = nullptr;
  wire::BlockDecoder decoder_;
  std::vector<Event> scratch_;
  std::uint64_t block_at_ = 0;
  std::uint64_t events_ = 0;
  std::uint64_t memory_ = 0;
  bool ended_ = false;
};

Result<Recording> NeapReader::run() {
  NEAP_TRY(read_file_header());
  while (!ended_) {
    NEAP_TRY_ASSIGN(const bool more, read_block());
    if (!more) break;
    if (context_.progress != nullptr) context_.progress->update(input_.consumed());
  }
  if (ended_ && input_.ensure(1))
    out_.warnings.emplace_back("Bytes follow the end mark and were not read.");
  for (auto& [ordinal, device] : devices_) {
    NEAP_TRY(check_device(device));
    if (!device.events.empty() || !device.segments.empty())
      out_.devices.push_back(std::move(device));
  }
  return std::move(out_);
}

Status NeapReader::corrupt(const std::string& what) const {
  return {ErrorCode::kCorrupt, "Trace " + input_.name() + " is damaged at byte " +
                                   std::to_string(block_at_) + ": " + what};
}

Status NeapReader::read_file_header() {
  if (!input_.ensure(wire::kFileHeaderSize)) {
    NEAP_TRY(input_.status());
    return corrupt("it ends within its header");
  }
  const std::uint32_t version = le32(input_.data() + wire::kMagic.size());
  if (version == 0 || version > wire::kVersion) {
    return {ErrorCode::kUnsupported, "Trace " + input_.name() + " has format version " +
                                         std::to_string(version) + "; this program reads up to " +
                                         std::to_string(wire::kVersion)};
  }
  input_.advance(wire::kFileHeaderSize);
  return {};
}

bool NeapReader::cut(std::uint64_t lost) {
  out_.truncated = "The trace has no end mark: its writer was killed or is still writing.";
  if (lost > 0)
    out_.truncated += " The last " + std::to_string(lost) + " bytes are not a whole block.";
  return false;
}

Result<bool> NeapReader::read_block() {
  block_at_ = input_.position();
  if (!input_.ensure(wire::kBlockHeaderSize)) {
    NEAP_TRY(input_.status());
    return cut(input_.available());
  }
  wire::BlockHeader header;
  const std::span<const std::uint8_t, wire::kBlockHeaderSize> bytes(input_.data(),
                                                                    wire::kBlockHeaderSize);
  if (!wire::parse_block_header(bytes, header)) {
    // After a power failure a file system may leave zeros at the end.
    if (std::all_of(bytes.begin(), bytes.end(), [](std::uint8_t b) { return b == 0; }))
      return cut_by_zeros();
    return corrupt("no block begins there");
  }
  if (header.stored > wire::kMaxBlockSize * 2 || header.raw > wire::kMaxBlockSize)
    return corrupt("a block is over the format's limit");
  input_.advance(wire::kBlockHeaderSize);
  if (!input_.ensure(header.stored)) {
    NEAP_TRY(input_.status());
    return cut(input_.available() + wire::kBlockHeaderSize);
  }
  const auto payload = decoder_.decode(header, {input_.data(), header.stored});
  if (!payload.ok()) {
    const Status& s = payload.status();
    return Status(s.code(), "Trace " + input_.name() + ", block at byte " +
                                std::to_string(block_at_) + ": " + s.message());
  }
  NEAP_TRY(take(header.type, *payload));
  input_.advance(header.stored);
  return true;
}

Result<bool> NeapReader::cut_by_zeros() {
  std::uint64_t zeros = 0;
  while (input_.ensure(1)) {
    const std::span<const std::uint8_t> rest(input_.data(), input_.available());
    if (!std::all_of(rest.begin(), rest.end(), [](std::uint8_t b) { return b == 0; }))
      return corrupt("no block begins there");
    zeros += rest.size();
    input_.advance(rest.size());
  }
  NEAP_TRY(input_.status());
  return cut(zeros);
}

Status NeapReader::charge(std::uint64_t bytes) {
  memory_ += bytes;
  if (Bytes(memory_) > context_.memory_limit)
    return over_memory_limit(input_, context_.memory_limit);
  return {};
}

Status NeapReader::take(BlockType type, std::span<const std::uint8_t> payload) {
  if (type == BlockType::kEvents) return take_events(payload);
  NEAP_TRY(charge(payload.size() * 2));
  Decoder in(payload);
  const std::optional<bool> ok = take(type, in);
  if (!ok) return {};  // written by a later minor version
  if (!*ok || !in.ok() || in.left() != 0)
    return corrupt("a block of type " + std::to_string(static_cast<int>(type)) +
                   " breaks its grammar");
  return {};
}

std::optional<bool> NeapReader::take(BlockType type, Decoder& in) {
  switch (type) {
    case BlockType::kStart:
      return take_start(in);
    case BlockType::kMetadata:
      return take_metadata(in);
    case BlockType::kNames:
      return take_names(in);
    case BlockType::kFrames:
      return take_frames(in);
    case BlockType::kStacks:
      return take_stacks(in);
    case BlockType::kPools:
      return take_pools(in);
    case BlockType::kDevice:
      return take_device(in);
    case BlockType::kSegments:
      return take_segments(in);
    case BlockType::kBlocks:
      return take_blocks(in);
    case BlockType::kSettings:
      return take_settings(in);
    case BlockType::kWarnings:
      return take_warnings(in);
    case BlockType::kDropped:
      out_.dropped_events = in.number();
      return true;
    case BlockType::kEnd:
      return take_end(in);
    default:
      return std::nullopt;
  }
}

bool NeapReader::take_start(Decoder& in) {
  out_.source = in.byte() == static_cast<std::uint8_t>(Source::kTorchSnapshot)
                    ? Source::kTorchSnapshot
                    : Source::kNeap;
  out_.start_unix_ns = in.number();
  return true;
}

bool NeapReader::take_metadata(Decoder& in) {
  for (std::size_t n = in.count(2); n > 0 && in.ok(); --n) {
    const std::string_view key = in.text();
    set_metadata(key, in.text());
  }
  return true;
}

void NeapReader::set_metadata(std::string_view key, std::string_view value) {
  for (auto& [k, v] : out_.metadata) {
    if (k != key) continue;
    v = value;
    return;
  }
  out_.metadata.emplace_back(key, value);
}

bool NeapReader::take_names(Decoder& in) {
  if (in.number() != out_.names.size()) return false;
  for (std::size_t n = in.count(); n > 0 && in.ok(); --n) {
    const std::size_t expected = out_.names.size();
    if (out_.names.intern(in.text()) != expected) return false;  // empty or already known
  }
  return true;
}

bool NeapReader::take_frames(Decoder& in) {
  if (in.number() != out_.stacks.frames().size()) return false;
  for (std::size_t n = in.count(3); n > 0 && in.ok(); --n) {
    Frame f;
    f.function = static_cast<std::uint32_t>(in.number_up_to(out_.names.size() - 1));
    f.file = static_cast<std::uint32_t>(in.number_up_to(out_.names.size() - 1));
    f.line = static_cast<std::uint32_t>(in.number_up_to(0xFFFFFFFF));
    (void)out_.stacks.add_frame(f);
  }
  return true;
}

bool NeapReader::take_stacks(Decoder& in) {
  if (in.number() != out_.stacks.size()) return false;
  std::vector<std::uint32_t> ids;
  for (std::size_t n = in.count(); n > 0 && in.ok(); --n) {
    ids.clear();
    std::uint64_t last = 0;
    for (std::size_t length = in.count(); length > 0 && in.ok(); --length) {
      last += in.difference();
      if (last >= out_.stacks.frames().size()) return false;
      ids.push_back(static_cast<std::uint32_t>(last));
    }
    (void)out_.stacks.add_stack(ids);
  }
  return true;
}

bool NeapReader::take_pools(Decoder& in) {
  if (in.number() != out_.pools.size()) return false;
  for (std::size_t n = in.count(2); n > 0 && in.ok(); --n) {
    const std::uint64_t owner = in.number();
    out_.pools.emplace_back(owner, in.number());
  }
  return out_.pools.size() <= 256;
}

bool NeapReader::take_device(Decoder& in) {
  DeviceRecording& d = device(in.number_up_to(0xFFFF));
  const std::uint8_t flags = in.byte();
  d.has_times = (flags & 1U) != 0;
  d.overflowed = (flags & 2U) != 0;
  return true;
}

bool NeapReader::take_segments(Decoder& in) {
  DeviceRecording& d = device(in.number_up_to(0xFFFF));
  for (std::size_t n = in.count(8); n > 0 && in.ok(); --n) {
    Segment s;
    s.address = in.number();
    s.size = in.number();
    s.stream = in.number();
    s.first_block = static_cast<std::uint32_t>(in.number_up_to(0xFFFFFFFF));
    s.block_count = static_cast<std::uint32_t>(in.number_up_to(0xFFFFFFFF));
    s.stack = static_cast<std::uint32_t>(in.number_up_to(out_.stacks.size() - 1));
    s.pool = static_cast<std::uint8_t>(in.number_up_to(out_.pools.size() - 1));
    const std::uint8_t flags = in.byte();
    s.small_pool = (flags & 1U) != 0;
    s.expandable = (flags & 2U) != 0;
    d.segments.push_back(s);
  }
  return true;
}

bool NeapReader::take_blocks(Decoder& in) {
  DeviceRecording& d = device(in.number_up_to(0xFFFF));
  for (std::size_t n = in.count(5); n > 0 && in.ok(); --n) {
    Block b;
    b.address = in.number();
    b.size = in.number();
    b.requested = in.number();
    b.stack = static_cast<std::uint32_t>(in.number_up_to(out_.stacks.size() - 1));
    b.state = static_cast<BlockState>(in.number_up_to(2));
    d.blocks.push_back(b);
  }
  return true;
}

bool NeapReader::take_warnings(Decoder& in) {
  for (std::size_t n = in.count(); n > 0 && in.ok(); --n) out_.warnings.emplace_back(in.text());
  return true;
}

bool NeapReader::take_end(Decoder& in) {
  const bool complete = in.number() == events_;
  out_.dropped_events = in.number();
  ended_ = true;
  return complete;
}

bool NeapReader::take_settings(Decoder& in) {
  RecordedSettings& s = out_.settings;
  s.present = true;
  s.conf = in.text();
  s.max_split_size = static_cast<std::int64_t>(in.difference());
  s.garbage_collection_threshold = in.real();
  s.expandable_segments = in.byte() != 0;
  for (std::uint32_t& d : s.roundup_power2_divisions)
    d = static_cast<std::uint32_t>(in.number_up_to(0xFFFFFFFF));
  s.trace_alloc_max_entries = in.number();
  s.json = in.text();
  return true;
}

Status NeapReader::take_events(std::span<const std::uint8_t> payload) {
  scratch_.clear();
  if (!wire::decode_events(payload, scratch_))
    return corrupt("a block of events breaks its grammar");
  NEAP_TRY(charge(scratch_.size() * sizeof(Event) * 2));
  events_ += scratch_.size();
  for (Event& e : scratch_) {
    if (names_a_stack(e.kind)) {
      if (e.name >= out_.stacks.size()) e.name = 0;
    } else if (e.name >= out_.names.size()) {
      return corrupt("an event refers to a name that the file does not define");
    }
    // A live allocator numbers its pools without a table.
    while (e.pool >= out_.pools.size()) out_.pools.emplace_back(0, out_.pools.size());
    if (last_device_ == nullptr || last_device_->ordinal != e.device)
      last_device_ = &device(e.device);
    last_device_->events.push_back(e);
  }
  return {};
}

Status NeapReader::check_device(DeviceRecording& d) const {
  for (const Segment& s : d.segments) {
    if (std::uint64_t{s.first_block} + s.block_count > d.blocks.size())
      return {ErrorCode::kCorrupt, "Trace " + input_.name() + " is damaged: a segment of device " +
                                       std::to_string(d.ordinal) + " lacks its blocks"};
  }
  return {};
}

DeviceRecording& NeapReader::device(std::uint64_t ordinal) {
  const auto key = static_cast<std::uint16_t>(ordinal);
  const auto [at, is_new] = devices_.try_emplace(key);
  if (is_new) {
    at->second.ordinal = key;
    at->second.has_times = true;
  }
  return at->second;
}

}  // namespace

Result<Recording> read_neap_trace(Input& input, const ReadContext& context) {
  return NeapReader(input, context).run();
}

}  // namespace neap::trace
