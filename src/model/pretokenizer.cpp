#include "model/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/format.h"
#include "base/status.h"

namespace neap::model {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

// White space as Hugging Face's engine sees it; pcre2 counts U+180E too.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kOthers =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

std::string with_exact_spaces(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char kind = pattern[++i];
      if (kind == 's' || kind == 'S') {
        const std::string_view set = kind == 's' ? kSpaces : kOthers;
        out += in_class ? std::string(set) : "[" + std::string(set) + "]";
      } else {
        out += c;
        out += kind;
      }
      continue;
    }
    if (c == '[' && !in_class) {
      in_class = true;
      // A bracket right behind the opening is a literal.
      out += c;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') {
        out += "\\]";
        ++i;
      }
      continue;
    }
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

}  // namespace

struct SplitPattern::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  std::string source;
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

SplitPattern::SplitPattern(std::string_view pattern, std::string_view where) {
  const std::string exact = with_exact_spaces(pattern);
  int number = 0;
  PCRE2_SIZE at = 0;
  auto compiled = std::make_shared<Code>();
  compiled->source = std::string(pattern);
  compiled->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(exact.data()), exact.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &number, &at, nullptr);
  if (compiled->code == nullptr) {
    unsigned char message[160] = {};
    pcre2_get_error_message(number, message, sizeof message);
    throw Error(ErrorCode::kUnsupported,
                format("{}: the pre-tokenizer's pattern \"{}\" does not compile: {}", where,
                       pattern, reinterpret_cast<const char*>(message)));
  }
  compiled->jit = pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE) == 0;
  code_ = std::move(compiled);
}

void SplitPattern::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  if (!match) throw Error(ErrorCode::kOutOfHostMemory, "No memory for splitting text");
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
  std::size_t done = 0;  // pieces reach so far
  std::size_t from = 0;  // the search starts here
  while (from < text.size()) {
    int found = code_->jit ? pcre2_jit_match(code_->code, subject, text.size(), from, 0,
                                             match.get(), nullptr)
                           : PCRE2_ERROR_JIT_STACKLIMIT;
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
      found =
          pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_JIT, match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      unsigned char message[160] = {};
      pcre2_get_error_message(found, message, sizeof message);
      throw Error(ErrorCode::kUnsupported,
                  format("The pre-tokenizer's pattern \"{}\" failed on a text of {} bytes: {}",
                         code_->source, text.size(), reinterpret_cast<const char*>(message)));
    }
    const std::size_t begin = ends[0];
    const std::size_t end = ends[1];
    if (end <= begin) {  // an empty match splits nothing
      from = std::max(from, end) + 1;
      continue;
    }
    if (begin > done) pieces.push_back(text.substr(done, begin - done));
    pieces.push_back(text.substr(begin, end - begin));
    done = from = end;
  }
  if (done < text.size()) pieces.push_back(text.substr(done));
}

PreTokenizer::PreTokenizer(const Tree& config, std::string_view where) {
  if (!config.is_null()) add(config, where);
}

void PreTokenizer::add(const Tree& config, std::string_view where) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kUnsupported, format("{}: pre_tokenizer {}", where, what));
  };
  if (!config.is_object()) refuse("is not an object");
  const std::string type = config.value("type", "");
  if (type == "Sequence") {
    if (!config.contains("pretokenizers") || !config["pretokenizers"].is_array())
      refuse("is a Sequence without pretokenizers");
    for (const Tree& stage : config["pretokenizers"]) add(stage, where);
  } else if (type == "ByteLevel") {
    if (byte_level_) refuse("has ByteLevel twice");
    byte_level_ = true;
    add_prefix_space_ = config.value("add_prefix_space", true);
    if (add_prefix_space_ && !stages_.empty())
      refuse("adds a prefix space behind a split, which is not supported");
    if (config.value("use_regex", true)) stages_.emplace_back(kGpt2Pattern, where);
  } else if (type == "Split") {
    if (byte_level_) refuse("splits behind ByteLevel, which is not supported");
    if (config.value("behavior", "") != "Isolated" || config.value("invert", false))
      refuse("has a Split that is not Isolated");
    const Tree pattern = config.value("pattern", Tree::object());
    if (!pattern.is_object() || !pattern.contains("Regex") || !pattern["Regex"].is_string())
      refuse("has a Split without a Regex");
    stages_.emplace_back(pattern["Regex"].get<std::string>(), where);
  } else {
    refuse(format("has the type \"{}\"; supported are ByteLevel, Split and Sequence", type));
  }
}

void PreTokenizer::split(std::string_view text, std::string& storage,
                         std::vector<std::string_view>& pieces) const {
  if (text.empty()) return;
  if (add_prefix_space_ && text.front() != ' ') {
    storage = " ";
    storage += text;
    text = storage;
  }
  std::vector<std::string_view> current{text};
  for (const SplitPattern& stage : stages_) {
    std::vector<std::string_view> next;
    for (const std::string_view piece : current) stage.split(piece, next);
    current = std::move(next);
  }
  pieces.insert(pieces.end(), current.begin(), current.end());
}

}  // namespace neap::model
