#include "trace/reader.h"

#include <cstring>
#include <optional>

#include "base/process.h"
#include "base/progress.h"
#include "base/read_limits.h"
#include "trace/formats.h"
#include "trace/wire_format.h"

namespace neap::trace {
namespace {

Bytes half_of_memory() {
  const Bytes memory = machine_memory();
  return memory.is_zero() ? 4_GiB : memory / 2;
}

class Bar final : public ReadProgress {
 public:
  explicit Bar(const Input& input)
      : progress_("Reading " + std::filesystem::path(input.name()).filename().string(),
                  input.file_size() >> 20, "MiB") {}
  void update(std::uint64_t consumed) override { progress_.update(consumed >> 20); }

 private:
  Progress progress_;
};

Status unknown_file(const Input& input) {
  std::string what = "Neither a PyTorch memory snapshot (pickle) nor a Neap trace: " + input.name();
  const std::span<const std::uint8_t> head(input.data(),
                                           std::min<std::size_t>(input.available(), 16));
  const auto begins = [&](std::string_view magic) {
    return head.size() >= magic.size() && std::memcmp(head.data(), magic.data(), magic.size()) == 0;
  };
  if (head.empty()) what += " is empty";
  if (begins("PK\x03\x04")) what += " is a zip archive, as torch.save writes";
  if (begins("{") || begins("[")) what += " looks like JSON";
  if (begins("<")) what += " looks like HTML; give the pickle that the page was made from";
  if (begins("(")) what += " may be a pickle of protocol 0 or 1, which PyTorch does not write";
  return {ErrorCode::kUnsupported, what};
}

Result<Recording> read_input(Input& input, const ReadOptions& options) {
  std::optional<Bar> bar;
  if (options.progress && input.file_size() >= (8ULL << 20)) bar.emplace(input);
  ReadContext context;
  context.memory_limit = options.memory_limit.is_zero() ? half_of_memory() : options.memory_limit;
  context.progress = bar ? &*bar : nullptr;
  const bool long_enough = input.ensure(wire::kMagic.size());
  NEAP_TRY(input.status());
  if (long_enough && std::memcmp(input.data(), wire::kMagic.data(), wire::kMagic.size()) == 0)
    return read_neap_trace(input, context);
  if (input.ensure(2) && input.data()[0] == 0x80) return read_torch_snapshot(input, context);
  NEAP_TRY(input.status());
  return unknown_file(input);
}

}  // namespace

Status over_memory_limit(const Input& input, Bytes limit) {
  ReadLimits limits = read_limits::kRecording;
  limits.memory.fixed = static_cast<double>(limit.count());
  return over_limit(input.name(), limits, Excess::kMemory, 0, ErrorCode::kOutOfHostMemory);
}

Result<Recording> read(const std::filesystem::path& path, const ReadOptions& options) {
  NEAP_TRY_ASSIGN(Input input, Input::open(path));
  return read_input(input, options);
}

Result<Recording> read_bytes(std::span<const std::uint8_t> bytes, std::string_view name,
                             const ReadOptions& options) {
  NEAP_TRY_ASSIGN(Input input, Input::over(bytes, std::string(name)));
  return read_input(input, options);
}

}  // namespace neap::trace
