#include "report/rollout_log.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/file.h"
#include "base/format.h"
#include "base/line_reader.h"
#include "base/open_file.h"

namespace neap::report {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kStepField = "{\"step\":";

std::optional<std::uint64_t> step_of(std::string_view line) {
  if (!line.starts_with(kStepField)) return std::nullopt;
  line.remove_prefix(kStepField.size());
  std::uint64_t step = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), step);
  if (error != std::errc() || end == line.data()) return std::nullopt;
  return step;
}

Status read_failure(const fs::path& path) {
  return {ErrorCode::kIo, format("Cannot read {}", path.string())};
}

// Truncates the file before its first line of a step after `last`, and before an incomplete last
// line. Steps never decrease, so all lines after such a line are also later.
Status cut_after(const fs::path& path, std::int64_t last) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  if (error) return {};  // no such file
  NEAP_TRY_ASSIGN(Input input, Input::open(path));
  LineReader lines(std::move(input), read_limits::kRolloutLine);
  LineReader::Line line;
  std::uint64_t kept = 0;
  while (true) {
    NEAP_TRY_ASSIGN(const bool more, lines.next(line));
    if (!more) break;
    if (!line.ended) {
      warn_of_torn_line(lines.where(line.number), line.text.size());
      break;
    }
    const auto step = step_of(line.text);
    if (!step) {
      return {ErrorCode::kCorrupt,
              format("{}: not an object that begins with a \"step\"", lines.where(line.number))};
    }
    if (static_cast<std::int64_t>(*step) > last) break;
    kept += line.text.size() + 1;
  }
  if (kept == size) return {};
  if (::truncate(path.c_str(), static_cast<off_t>(kept)) != 0)
    return {ErrorCode::kIo,
            format("Cannot cut {} at step {}: {}", path.string(), last, system_reason(errno))};
  return {};
}

struct Tail {
  std::string text;  ///< whole lines
  bool cut = false;  ///< the text starts after the beginning of the file
};

// Reads the last whole lines of a file, at most `most` bytes.
Result<Tail> tail(const fs::path& path, std::uint64_t most) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  if (error || size == 0) return Tail();
  if (most == 0) return Tail{{}, true};
  NEAP_TRY_ASSIGN(const Descriptor file, open_regular_file(path));
  const std::uint64_t take = std::min<std::uint64_t>(size, most);
  std::string text(static_cast<std::size_t>(take), '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const ssize_t n = ::pread(file.get(), text.data() + have, text.size() - have,
                              static_cast<off_t>(size - take + have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return read_failure(path);
    if (n == 0) break;  // cut while it was read
    have += static_cast<std::size_t>(n);
  }
  text.resize(have);
  const std::size_t whole = text.find_last_of('\n') + 1;  // 0 without a line break
  if (whole < text.size()) warn_of_torn_line(path.string(), text.size() - whole);
  text.resize(whole);
  if (take < size) text.erase(0, text.find('\n') + 1);
  return Tail{std::move(text), take < size};
}

}  // namespace

Json Rollout::to_json() const {
  Json out = {{"prompt", prompt}, {"response", response}};
  if (!ground_truth.empty())
    out["ground_truth"] =
        ground_truth.size() == 1 ? Json(ground_truth.front()) : Json(ground_truth);
  out["score"] = score;
  if (!rewards.empty()) {
    Json& by_name = out["rewards"] = Json::object();
    for (const auto& [name, value] : rewards)
      if (!std::isnan(value)) by_name[name] = value;
  }
  out["tokens"] = tokens;
  out["truncated"] = truncated;
  if (!data_source.empty()) out["data_source"] = data_source;
  if (!verdict.empty()) out["verdict"] = verdict;
  if (!prompt_ids.empty()) out["prompt_ids"] = prompt_ids;
  if (!response_ids.empty()) out["response_ids"] = response_ids;
  return out;
}

Rollout Rollout::from_json(const Json& json) {
  Rollout out;
  const auto text = [&](const char* key, std::string& into) {
    if (const auto at = json.find(key); at != json.end() && at->is_string())
      into = at->get<std::string>();
  };
  text("prompt", out.prompt);
  text("response", out.response);
  text("data_source", out.data_source);
  text("verdict", out.verdict);
  if (const auto at = json.find("ground_truth"); at != json.end()) {
    for (const Json& each : at->is_array() ? *at : Json::array({*at}))
      if (each.is_string()) out.ground_truth.push_back(each.get<std::string>());
  }
  const auto number = [](const Json& value) {
    return value.is_number() ? value.get<double>() : std::nan("");
  };
  if (const auto at = json.find("score"); at != json.end()) out.score = number(*at);
  if (const auto at = json.find("rewards"); at != json.end() && at->is_object())
    for (const auto& [name, value] : at->items()) out.rewards.emplace_back(name, number(value));
  if (const auto at = json.find("tokens"); at != json.end() && at->is_number_unsigned())
    out.tokens = at->get<std::int64_t>();
  if (const auto at = json.find("truncated"); at != json.end() && at->is_boolean())
    out.truncated = at->get<bool>();
  return out;
}

Result<RolloutLog> RolloutLog::open(const fs::path& folder, std::optional<std::int64_t> resume_step,
                                    Bytes limit) {
  const fs::path path = folder / kRolloutsFile;
  std::error_code ignored;
  if (!resume_step) {
    const auto size = fs::file_size(path, ignored);
    if (!ignored && size > 0)
      return Status(ErrorCode::kAlreadyExists,
                    path.string() + " already holds a run; resume it or choose another folder");
  }
  for (const std::string_view name : {kOlderRolloutsFile, kRolloutsFile})
    NEAP_TRY(cut_after(folder / name, resume_step.value_or(-1)));
  NEAP_TRY_ASSIGN(AppendFile file, AppendFile::open(path));
  return RolloutLog(std::move(file), limit);
}

Status RolloutLog::rotate() {
  const fs::path path = file_.path();
  std::error_code error;
  fs::rename(path, path.parent_path() / kOlderRolloutsFile, error);
  if (error)
    return {ErrorCode::kIo, format("Cannot rename {}: {}", path.string(), error.message())};
  NEAP_TRY_ASSIGN(file_, AppendFile::open(path));
  return {};
}

Status RolloutLog::append(std::uint64_t step, std::span<const Rollout> rollouts) {
  std::string lines;
  for (const Rollout& rollout : rollouts) {
    Json line = {{"step", step}};
    line.update(rollout.to_json());
    // Texts come from outside: invalid UTF-8 must not end the run.
    lines += json_text(line);
    lines += '\n';
  }
  if (file_.size() > 0 && file_.size() + lines.size() > limit_.count() / 2) NEAP_TRY(rotate());
  return file_.write_or_keep(lines);
}

Result<std::vector<StepRollouts>> read_rollouts(const fs::path& folder, Bytes most) {
  NEAP_TRY_ASSIGN(Tail newest, tail(folder / kRolloutsFile, most.count()));
  auto& [text, cut] = newest;
  if (!cut) {
    NEAP_TRY_ASSIGN(const Tail older,
                    tail(folder / kOlderRolloutsFile, most.count() - text.size()));
    cut = older.cut;
    text.insert(0, older.text);
  }
  std::vector<StepRollouts> out;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    NEAP_TRY_ASSIGN(const Json line, parse_json(std::string_view(text).substr(begin, end - begin),
                                                (folder / kRolloutsFile).string()));
    begin = end + 1;
    const auto step = line.is_object() ? line.value("step", Json()) : Json();
    if (!step.is_number_unsigned())
      return Status(ErrorCode::kCorrupt,
                    (folder / kRolloutsFile).string() + ": a line without a \"step\"");
    if (out.empty() || out.back().step != step.get<std::uint64_t>())
      out.push_back({step.get<std::uint64_t>(), {}, !(out.empty() && cut)});
    out.back().rollouts.push_back(Rollout::from_json(line));
  }
  return out;
}

}  // namespace neap::report
