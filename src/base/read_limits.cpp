#include "base/read_limits.h"

#include "base/format.h"

namespace neap {
namespace {

Bytes bytes_of(double count) {
  return Bytes(static_cast<std::uint64_t>(count));
}

std::string amount_text(const ReadLimits& limits, Excess excess, std::uint64_t read) {
  switch (excess) {
    case Excess::kFile:
      return to_string(limits.file);
    case Excess::kPart:
      return to_string(limits.part);
    case Excess::kLevels:
      return format("{} levels", limits.levels);
    case Excess::kMemory:
      return to_string(bytes_of(limits.memory.of(read)));
    case Excess::kUnpacked:
      return to_string(bytes_of(limits.unpacked.of(read)));
    case Excess::kSteps:
      return format("{:.0f} steps", limits.steps.of(read));
    case Excess::kSeconds:
      return format("{:.3g} s of processor time", limits.seconds.of(read));
  }
  return {};
}

std::string_view verb_of(Excess excess) {
  switch (excess) {
    case Excess::kFile:
    case Excess::kPart:
      return "is";
    case Excess::kLevels:
      return "nests";
    case Excess::kMemory:
      return "needs memory";
    case Excess::kUnpacked:
      return "expands to bytes";
    case Excess::kSteps:
    case Excess::kSeconds:
      return "takes";
  }
  return {};
}

}  // namespace

std::string limit_text(const ReadLimits& limits, Excess excess, std::uint64_t read) {
  return format("{} over the limit of {} for {}; {}", verb_of(excess),
                amount_text(limits, excess, read), limits.what, limits.advice);
}

Status over_limit(std::string_view where, const ReadLimits& limits, Excess excess,
                  std::uint64_t read, ErrorCode code) {
  return {code, format("{} {}", where, limit_text(limits, excess, read))};
}

Status check_json(std::string_view text, std::string_view where, const ReadLimits& limits) {
  // Memory of nlohmann's values: of any, of a list or an object, and of a text or a name.
  constexpr std::uint64_t kValue = 16, kList = 40, kText = 48;
  std::uint64_t memory = text.size();
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
      memory += kText;
    } else if (c == '[' || c == '{') {
      memory += kValue + kList;
      if (++depth > limits.levels) return over_limit(where, limits, Excess::kLevels);
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',') {
      memory += kValue;
    }
  }
  if (static_cast<double>(memory) <= limits.memory.of(text.size())) return {};
  return over_limit(where, limits, Excess::kMemory, text.size());
}

}  // namespace neap
