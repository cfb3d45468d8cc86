#include "trace/writer.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "base/file.h"
#include "trace/wire_format.h"

namespace neap::trace {
namespace {

using wire::BlockType;

// Tables are cut into blocks of about this size, well below the format's limit.
constexpr std::size_t kBlockSize = 1U << 20;

class Writer {
 public:
  explicit Writer(const Recording& recording) : r_(recording) {}

  /// Takes ownership of the descriptor.
  Status run(int fd, const std::filesystem::path& path) {
    NEAP_TRY(file_.take(fd, path));
    out_.byte(static_cast<std::uint8_t>(r_.source));
    out_.number(r_.start_unix_ns);
    NEAP_TRY(append(BlockType::kStart));
    for (const auto& [key, value] : r_.metadata) {
      out_.number(1);
      out_.text(key);
      out_.text(value);
      NEAP_TRY(append(BlockType::kMetadata));
    }
    NEAP_TRY(tables());
    for (const DeviceRecording& d : r_.devices) NEAP_TRY(device(d));
    NEAP_TRY(warnings());
    out_.number(r_.event_count());
    out_.number(r_.dropped_events);
    NEAP_TRY(append(BlockType::kEnd));
    return file_.close();
  }

 private:
  Status append(BlockType type) {
    Status s = file_.append(type, out_.bytes());
    out_.clear();
    return s;
  }

  /// Writes entries first..size-1 in blocks. `head` writes a block's beginning and count, `put`
  /// writes an entry. `weight` estimates the bytes of an entry.
  template <class Head, class Weight, class Put>
  Status in_blocks(BlockType type, std::size_t first, std::size_t size, Head head, Weight weight,
                   Put put) {
    while (first < size) {
      std::size_t end = first;
      for (std::size_t bytes = 0; end < size && bytes < kBlockSize; ++end) bytes += weight(end);
      head(first);
      out_.number(end - first);
      for (; first < end; ++first) put(first);
      NEAP_TRY(append(type));
    }
    return {};
  }

  Status tables() {
    const auto numbered = [&](std::size_t first) { out_.number(first); };
    const auto id = [](std::size_t i) { return static_cast<std::uint32_t>(i); };
    NEAP_TRY(in_blocks(
        BlockType::kNames, 1, r_.names.size(), numbered,
        [&](std::size_t i) { return r_.names.name(id(i)).size() + 2; },
        [&](std::size_t i) { out_.text(r_.names.name(id(i))); }));
    NEAP_TRY(in_blocks(
        BlockType::kFrames, 0, r_.stacks.frames().size(), numbered,
        [](std::size_t) { return std::size_t{12}; },
        [&](std::size_t i) {
          const Frame& f = r_.stacks.frame(id(i));
          out_.number(f.function);
          out_.number(f.file);
          out_.number(f.line);
        }));
    NEAP_TRY(in_blocks(
        BlockType::kStacks, 1, r_.stacks.size(), numbered,
        [&](std::size_t i) { return r_.stacks.stack(id(i)).size() * 4 + 2; },
        [&](std::size_t i) {
          const auto stack = r_.stacks.stack(id(i));
          out_.number(stack.size());
          std::uint64_t last = 0;
          for (const std::uint32_t f : stack) {
            out_.difference(f - last);
            last = f;
          }
        }));
    NEAP_TRY(in_blocks(
        BlockType::kPools, 1, r_.pools.size(), numbered,
        [](std::size_t) { return std::size_t{20}; },
        [&](std::size_t i) {
          out_.number(r_.pools[i].first);
          out_.number(r_.pools[i].second);
        }));
    if (!r_.settings.present) return {};
    const RecordedSettings& s = r_.settings;
    out_.text(s.conf);
    out_.difference(static_cast<std::uint64_t>(s.max_split_size));
    out_.real(s.garbage_collection_threshold);
    out_.byte(s.expandable_segments ? 1 : 0);
    for (const std::uint32_t d : s.roundup_power2_divisions) out_.number(d);
    out_.number(s.trace_alloc_max_entries);
    out_.text(s.json);
    return append(BlockType::kSettings);
  }

  Status device(const DeviceRecording& d) {
    const auto ordinal = [&](std::size_t) { out_.number(d.ordinal); };
    ordinal(0);
    out_.byte(static_cast<std::uint8_t>((d.has_times ? 1 : 0) | (d.overflowed ? 2 : 0)));
    NEAP_TRY(append(BlockType::kDevice));
    NEAP_TRY(in_blocks(
        BlockType::kBlocks, 0, d.blocks.size(), ordinal,
        [](std::size_t) { return std::size_t{24}; },
        [&](std::size_t i) {
          const Block& b = d.blocks[i];
          out_.number(b.address);
          out_.number(b.size);
          out_.number(b.requested);
          out_.number(b.stack);
          out_.number(static_cast<std::uint64_t>(b.state));
        }));
    NEAP_TRY(in_blocks(
        BlockType::kSegments, 0, d.segments.size(), ordinal,
        [](std::size_t) { return std::size_t{32}; },
        [&](std::size_t i) {
          const Segment& s = d.segments[i];
          out_.number(s.address);
          out_.number(s.size);
          out_.number(s.stream);
          out_.number(s.first_block);
          out_.number(s.block_count);
          out_.number(s.stack);
          out_.number(s.pool);
          out_.byte(static_cast<std::uint8_t>((s.small_pool ? 1 : 0) | (s.expandable ? 2 : 0)));
        }));
    std::span<const Event> left(d.events);
    while (!left.empty()) {
      const std::size_t n = std::min(left.size(), wire::kMaxBlockEvents);
      wire::encode_events(left.first(n), out_);
      NEAP_TRY(append(BlockType::kEvents));
      left = left.subspan(n);
    }
    return {};
  }

  Status warnings() {
    std::vector<std::string> texts = r_.warnings;
    if (!r_.truncated.empty()) texts.push_back("Where this was read from: " + r_.truncated);
    return in_blocks(
        BlockType::kWarnings, 0, texts.size(), [](std::size_t) {},
        [&](std::size_t i) { return texts[i].size() + 2; },
        [&](std::size_t i) { out_.text(texts[i]); });
  }

  const Recording& r_;
  wire::BlockFile file_;
  wire::Encoder out_;
};

}  // namespace

Status write(const std::filesystem::path& path, const Recording& recording) {
  NEAP_TRY_ASSIGN(TemporaryFile file, TemporaryFile::create(path));
  const int fd = ::fcntl(file.fd(), F_DUPFD_CLOEXEC, 0);
  if (fd < 0)
    return {ErrorCode::kIo, "Cannot write trace " + path.string() + ": " + system_reason(errno)};
  NEAP_TRY(Writer(recording).run(fd, path));
  return file.commit(/*sync=*/true);
}

}  // namespace neap::trace
