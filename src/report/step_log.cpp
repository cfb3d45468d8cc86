#include "report/step_log.h"

#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/format.h"
#include "base/line_reader.h"

namespace neap::report {
namespace {

Result<Json> parse_row(std::string_view text, const std::filesystem::path& path,
                       std::size_t number) {
  const std::string where = format("{}:{}", path.string(), number);
  NEAP_TRY_ASSIGN(Json value, parse_json(text, where, read_limits::kLogLine));
  if (!value.is_object() || !value.contains("step") || !value["step"].is_number_unsigned())
    return Status(ErrorCode::kCorrupt, where + ": not an object with a \"step\"");
  return value;
}

// Reads every row and its text without the newline. Skips an incomplete last line.
Status read_rows(const std::filesystem::path& path,
                 const std::function<void(Json&&, std::string_view)>& visit) {
  NEAP_TRY_ASSIGN(Input input, Input::open(path));
  LineReader lines(std::move(input), read_limits::kLogLine);
  LineReader::Line line;
  while (true) {
    NEAP_TRY_ASSIGN(const bool more, lines.next(line));
    if (!more) return {};
    if (!line.ended) {
      // The process was killed during the write, or the disk was full.
      warn_of_torn_line(lines.where(line.number), line.text.size());
      return {};
    }
    NEAP_TRY_ASSIGN(Json value, parse_row(line.text, path, line.number));
    visit(std::move(value), line.text);
  }
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
    std::string kept;
    NEAP_TRY(read_rows(path, [&](const Json& row, std::string_view text) {
      const auto step = row["step"].get<std::uint64_t>();
      if (*resume_step >= 0 && step <= static_cast<std::uint64_t>(*resume_step))
        kept.append(text) += '\n';
    }));
    if (kept.size() != size) NEAP_TRY(write_file_atomic(path, kept));
  }
  NEAP_TRY_ASSIGN(AppendFile file, AppendFile::open(path));
  return StepLog(std::move(file));
}

Status StepLog::append(std::uint64_t step, const Json& fields) {
  Json line = Json::object();
  line["step"] = step;
  line.update(fields);
  // Names come from outside: invalid UTF-8 must not end the run.
  return file_.write_or_keep(json_text(line) + "\n");
}

Result<std::vector<Json>> StepLog::read(const std::filesystem::path& path) {
  std::vector<Json> rows;
  NEAP_TRY(read_rows(path, [&](Json&& row, std::string_view) { rows.push_back(std::move(row)); }));
  return rows;
}

Status StepLog::for_each(const std::filesystem::path& path,
                         const std::function<void(const Json&)>& visit) {
  return read_rows(path, [&](const Json& row, std::string_view) { visit(row); });
}

}  // namespace neap::report
