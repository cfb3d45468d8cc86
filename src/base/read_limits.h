// Limits of reading an input file: the limits of every parser in one table, and the one form of
// message for a file that exceeds them.
//
// Failure   over_limit() makes kInvalidArgument, unless another code is given.
//
// Cost      check_json() is one pass over the text.
//
// Work is counted by a Budget (budget.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace neap {

/// A limit that grows with the bytes that are read.
struct Allowance {
  double fixed = 0, of_byte = 0;
  [[nodiscard]] constexpr double of(std::uint64_t bytes) const {
    return fixed + of_byte * static_cast<double>(bytes);
  }
};

struct ReadLimits {
  std::string_view what = {};  ///< "a row of data"
  Bytes file = {};             ///< as stored; zero: any size, it is read in parts
  Bytes part = {};             ///< of a row, line, header or text
  int levels = 0;              ///< of nesting
  Allowance memory = {};       ///< bytes made from one part
  Allowance unpacked = {};     ///< bytes unpacked from the file
  Allowance steps = {};        ///< of an interpreter or a matcher, for one part
  Allowance seconds = {};      ///< processor time for one part
  std::string_view advice = {};
};

enum class Excess : std::uint8_t { kFile, kPart, kLevels, kMemory, kUnpacked, kSteps, kSeconds };

/// "is over the limit of 64 MiB for a row of data; ADVICE". `read`: bytes that allowances count.
[[nodiscard]] std::string limit_text(const ReadLimits& limits, Excess excess,
                                     std::uint64_t read = 0);
/// limit_text() after `where` (a file, "file:line").
[[nodiscard]] Status over_limit(std::string_view where, const ReadLimits& limits, Excess excess,
                                std::uint64_t read = 0,
                                ErrorCode code = ErrorCode::kInvalidArgument);

/// Checks the nesting and the memory of JSON text before it is parsed, because parsers and readers
/// are recursive and a value of two bytes takes up to 64. Other text passes.
[[nodiscard]] Status check_json(std::string_view text, std::string_view where,
                                const ReadLimits& limits);

/// The table.
namespace read_limits {

// JSON values take up to 16 times their text, except in hostile files.
inline constexpr Allowance kJsonMemory{64.0 * (1 << 20), 16};
inline constexpr int kJsonLevels = 500;

inline constexpr ReadLimits kConfiguration{.what = "a configuration",
                                           .file = 16_MiB,
                                           .levels = 100,
                                           .advice = "check that the file is a configuration"};

/// A small JSON file: of a model, a checkpoint, a template's settings.
[[nodiscard]] constexpr ReadLimits json_file(std::string_view what, Bytes file,
                                             int levels = kJsonLevels) {
  return {.what = what,
          .file = file,
          .levels = levels,
          .memory = kJsonMemory,
          .advice = "check that it is the file that is meant"};
}
inline constexpr ReadLimits kJson = json_file("JSON", {});
inline constexpr ReadLimits kModelJson = json_file("a model's JSON file", 16_MiB);
inline constexpr ReadLimits kWeightIndex = json_file("an index of weights", 256_MiB);
inline constexpr ReadLimits kRunState = json_file("the state of a run", 16_MiB);
inline constexpr ReadLimits kPlan = json_file("a plan or a result of replay", 256_MiB);
inline constexpr ReadLimits kReplaySettings = json_file("settings of a replay", 64_MiB);
inline constexpr ReadLimits kRates = json_file("measured rates", 64_KiB);

/// A part of a file that holds JSON: a line or a header.
[[nodiscard]] constexpr ReadLimits json_part(std::string_view what, Bytes part,
                                             std::string_view advice) {
  return {
      .what = what, .part = part, .levels = kJsonLevels, .memory = kJsonMemory, .advice = advice};
}
inline constexpr ReadLimits kRow =
    json_part("a row of data", 64_MiB, "divide the row or leave it out");
inline constexpr ReadLimits kLogLine = json_part("a line of a log", 16_MiB, "remove the line");
inline constexpr ReadLimits kRolloutLine =
    json_part("a line of responses", 64_MiB, "remove the line");
/// gzip packs at most 1032 to 1. Traces and rows of data stay far below 1000.
inline constexpr ReadLimits kPacked{.what = "a packed file",
                                    .unpacked = {64.0 * (1 << 20), 1000},
                                    .advice = "unpack it to look at what it holds"};
/// pyarrow and a batch of rows take some GiB of addresses.
inline constexpr ReadLimits kParquet{.what = "a Parquet file",
                                     .part = kRow.part,
                                     .levels = kJsonLevels,
                                     .memory = {4.0 * (1 << 30), 1000},
                                     .unpacked = kPacked.unpacked,
                                     .seconds = {120, 1e-5},
                                     .advice = "write it anew as JSONL"};
inline constexpr ReadLimits kWeights =
    json_part("a safetensors header", Bytes(100'000'000), "save the model anew");
/// Its memory is half of the machine's, or what the caller gives.
inline constexpr ReadLimits kRecording{.what = "a recording", .advice = "record fewer steps"};
inline constexpr ReadLimits kTokenizerFile = json_file("a tokenizer's file", 256_MiB, 64);
/// For each text: tokenizers need about 20 steps and 0.1 microseconds per byte.
inline constexpr ReadLimits kTokenizer{.what = "one text",
                                       .memory = {64.0 * (1 << 20), 100},
                                       .steps = {2e7, 1000},
                                       .seconds = {10, 1e-5},
                                       .advice = "check its tokenizer.json"};
/// The longest template in known checkpoints has 20 KiB; a tree takes about 100 times its source.
inline constexpr ReadLimits kTemplate{.what = "a chat template",
                                      .file = 1_MiB,
                                      .levels = 100,
                                      .advice = "check that it is the template that is meant"};
/// `part`: of a text; `levels`: of calls and blocks, and of values.
inline constexpr ReadLimits kRendering{.what = "a chat template",
                                       .part = 64_MiB,
                                       .levels = 600,
                                       .memory = {256.0 * (1 << 20), 0},
                                       .steps = {2e7, 0},
                                       .advice = "it may loop without end"};
/// `a + b + c` has a level for each operator.
inline constexpr ReadLimits kTemplateExpression{
    .what = "an expression of a chat template", .levels = 500, .advice = kTemplate.advice};

/// A regular expression, for each text: steps from one start (pcre2_set_match_limit). `part`: of
/// the expression.
inline constexpr ReadLimits kTokenizerPattern{.what = "a tokenizer's pattern",
                                              // A run of similar characters takes a frame for each.
                                              .memory = {64.0 * (1 << 20), 1024},
                                              .steps = {1e7, 0},
                                              .seconds = kTokenizer.seconds,
                                              .advice = kTokenizer.advice};
inline constexpr ReadLimits kNamePattern{.what = "a pattern of module names",
                                         .part = Bytes(2000),
                                         .memory = {8.0 * (1 << 20), 0},
                                         .steps = {1e5, 0},
                                         .advice = "name the modules one by one"};
inline constexpr ReadLimits kRewardPattern{.what = "a pattern of a reward function",
                                           .memory = {64.0 * (1 << 20), 0},
                                           .steps = {5e6, 0},
                                           .seconds = {10, 1e-5},
                                           .advice = "simplify the pattern or set on_failure"};

inline constexpr ReadLimits kJudge{.what = "the source of a reward function",
                                   .file = 16_MiB,
                                   .advice = "check the function's path"};
inline constexpr ReadLimits kReply =
    json_part("a reply of a reward function", 64_MiB, "reply with scores and short reasons");
/// A formula in a response or a ground truth.
inline constexpr ReadLimits kAnswer{.what = "an answer", .part = 4_KiB, .levels = 64};
inline constexpr ReadLimits kKeptMetrics =
    json_part("the metrics of a kept step", 1_MiB, "keep the experience again");
inline constexpr ReadLimits kEventFile{
    .what = "a file of TensorBoard's events", .file = 4_GiB, .advice = "move it to another folder"};

}  // namespace read_limits
}  // namespace neap
