#include "report/step_log.h"

#include <fstream>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/format.h"

namespace neap::report {
namespace {

struct Lines {
  std::vector<Json> values;
  std::vector<std::string_view> texts;  ///< into the file's contents, newline included
};

Result<Json> parse_row(std::string_view text, const std::filesystem::path& path,
                       std::size_t number) {
  const std::string where = format("{}:{}", path.string(), number);
  NEAP_TRY_ASSIGN(Json value, parse_json(text, where));
  if (!value.is_object() || !value.contains("step") || !value["step"].is_number_unsigned())
    return Status(ErrorCode::kCorrupt, where + ": not an object with a \"step\"");
  return value;
}

Result<Lines> split(std::string_view contents, const std::filesystem::path& path) {
  Lines lines;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < contents.size();) {
    ++number;
    const std::size_t newline = contents.find('\n', begin);
    if (newline == std::string_view::npos) {
      // Killed while it was written, or the disk was full.
      warn_of_torn_line(format("{}:{}", path.string(), number), contents.size() - begin);
      break;
    }
    const std::string_view text = contents.substr(begin, newline + 1 - begin);
    begin = newline + 1;
    NEAP_TRY_ASSIGN(Json value, parse_row(text, path, number));
    lines.values.push_back(std::move(value));
    lines.texts.push_back(text);
  }
  return lines;
}

}  // namespace

Result<StepLog> StepLog::open(const std::filesystem::path& path,
                              std::optional<std::int64_t> resume_step) {
  std::error_code ignored;
  const auto size = std::filesystem::file_size(path, ignored);
  if (!ignored && size > 0) {
    if (!resume_step)
      return Status(ErrorCode::kAlreadyExists,
                    path.string() + " already holds a run; resume it or choose another folder");
    NEAP_TRY_ASSIGN(const std::string contents, read_file(path));
    NEAP_TRY_ASSIGN(const Lines lines, split(contents, path));
    std::string kept;
    for (std::size_t i = 0; i < lines.values.size(); ++i) {
      if (lines.values[i]["step"].get<std::int64_t>() <= *resume_step) kept += lines.texts[i];
    }
    if (kept.size() != contents.size()) NEAP_TRY(write_file_atomic(path, kept));
  }
  NEAP_TRY_ASSIGN(AppendFile file, AppendFile::open(path));
  return StepLog(std::move(file));
}

Status StepLog::append(std::uint64_t step, const Json& fields) {
  Json line = Json::object();
  line["step"] = step;
  line.update(fields);
  // Names come from outside; a broken UTF-8 sequence must not end the run.
  return file_.write_or_keep(json_text(line) + "\n");
}

Result<std::vector<Json>> StepLog::read(const std::filesystem::path& path) {
  NEAP_TRY_ASSIGN(const std::string contents, read_file(path));
  NEAP_TRY_ASSIGN(Lines lines, split(contents, path));
  return std::move(lines.values);
}

Status StepLog::for_each(const std::filesystem::path& path,
                         const std::function<void(const Json&)>& visit) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return {ErrorCode::kIo, format("Cannot open {}", path.string())};
  std::size_t number = 0;
  for (std::string line; std::getline(in, line) && !in.eof();) {
    NEAP_TRY_ASSIGN(const Json value, parse_row(line, path, ++number));
    visit(value);
  }
  if (in.bad()) return {ErrorCode::kIo, format("Cannot read {}", path.string())};
  return {};
}

}  // namespace neap::report
