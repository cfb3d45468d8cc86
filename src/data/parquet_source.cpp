#include "data/parquet_source.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>

#include "base/child_process.h"
#include "base/format.h"
#include "base/python.h"
#include "base/read_limits.h"

namespace neap::data {

// Text of src/data/parquet_rows.py, embedded by CMake.
extern const char* const kParquetRows;

namespace {

constexpr const char* kPyarrow = "pyarrow==26.0.1";

class ParquetSource final : public RowSource {
 public:
  ParquetSource(std::filesystem::path file, std::uint64_t size,
                std::unique_ptr<ChildProcess> reader, std::chrono::milliseconds patience)
      : file_(std::move(file)), size_(size), reader_(std::move(reader)), patience_(patience) {}

  ParquetSource(const ParquetSource&) = delete;
  ParquetSource& operator=(const ParquetSource&) = delete;
  ~ParquetSource() override {
    if (!ended_) reader_->kill();  // else it would wait until its rows are read
  }

  Result<bool> next(RawRow& row) override {
    NEAP_TRY_ASSIGN(const std::string_view text, line());
    if (!text.starts_with('#')) {
      row = {text, ++rows_};
      return true;
    }
    ended_ = text == "#end";
    if (ended_) return false;
    return failure(text);
  }
  [[nodiscard]] std::string where(std::uint64_t number) const override {
    return format("{}: row {}", file_.string(), number);
  }
  [[nodiscard]] std::uint64_t position() const override { return rows_; }
  [[nodiscard]] bool packed() const override { return true; }
  [[nodiscard]] double progress() const override {
    return total_ == 0 ? 0 : static_cast<double>(rows_) / static_cast<double>(total_);
  }

  /// Reads the number of rows. A file that is not Parquet fails here.
  Status start() {
    NEAP_TRY_ASSIGN(const std::string_view text, line());
    constexpr std::string_view kRows = "#rows ";
    if (!text.starts_with(kRows)) return failure(text);
    const auto [end, error] =
        std::from_chars(text.data() + kRows.size(), text.data() + text.size(), total_);
    return error == std::errc() && end == text.data() + text.size() ? ok_status() : failure(text);
  }

 private:
  [[nodiscard]] Status failure(std::string_view text) const {
    const std::string_view reason = text.substr(std::min(text.find(' '), text.size()));
    if (text.starts_with("#missing ")) {
      return {ErrorCode::kUnsupported,
              format("{} is a Parquet file, which needs pyarrow in the python3 on PATH "
                     "(python3 -m pip install {}):{}",
                     file_.string(), kPyarrow, reason)};
    }
    constexpr std::array<std::pair<std::string_view, Excess>, 4> kOver{
        {{"#over part", Excess::kPart},
         {"#over memory", Excess::kMemory},
         {"#over unpacked", Excess::kUnpacked},
         {"#over seconds", Excess::kSeconds}}};
    for (const auto& [word, excess] : kOver)
      if (text == word)
        return over_limit(where(rows_ + 1), read_limits::kParquet, excess, size_,
                          ErrorCode::kCorrupt);
    return {ErrorCode::kCorrupt,
            format("Cannot read {} as Parquet after row {}:{}", file_.string(), rows_, reason)};
  }

  /// The line is valid until the next call.
  [[nodiscard]] Result<std::string_view> line() {
    std::size_t searched = 0;
    while (true) {
      const std::size_t end = buffer_.find('\n', at_ + searched);
      if (end != std::string::npos) {
        const std::string_view text = std::string_view(buffer_).substr(at_, end - at_);
        at_ = end + 1;
        return text;
      }
      buffer_.erase(0, at_);
      at_ = 0;
      searched = buffer_.size();
      NEAP_TRY(wait());
      if (const Status status = reader_->read(buffer_); !status.ok()) {
        return Status(ErrorCode::kCorrupt,
                      format("Cannot read {} as Parquet after row {}: the python3 that reads it {}",
                             file_.string(), rows_, status.message()));
      }
    }
  }

  /// Waits until output is available.
  [[nodiscard]] Status wait() {
    while (true) {
      std::array<pollfd, 2> files{{{reader_->out(), POLLIN, 0}, {reader_->err(), POLLIN, 0}}};
      const int ready = ::poll(files.data(), files.size(), static_cast<int>(patience_.count()));
      if (ready < 0 && errno == EINTR) continue;
      if (ready < 0)
        return {ErrorCode::kIo, format("Cannot wait for the reader of {}", file_.string())};
      if (ready == 0)
        return {ErrorCode::kCorrupt,
                format("Cannot read {} as Parquet after row {}: the python3 that reads it wrote "
                       "nothing for {} ms",
                       file_.string(), rows_, patience_.count())};
      if (files[1].revents != 0) reader_->read_errors();
      if (files[0].revents != 0) return {};
    }
  }

  std::filesystem::path file_;
  std::uint64_t size_;
  std::unique_ptr<ChildProcess> reader_;
  std::chrono::milliseconds patience_;
  std::string buffer_;
  std::size_t at_ = 0;
  std::uint64_t rows_ = 0, total_ = 0;
  bool ended_ = false;
};

// Limits for a file of `size` bytes: of a row, of memory, of all rows, of processor time.
std::string limits_text(std::uint64_t size) {
  constexpr const ReadLimits& kLimits = read_limits::kParquet;
  constexpr double kMostMemory = 16.0 * (1 << 30);
  return format("{} {:.0f} {:.0f} {:.0f}", kLimits.part.count(),
                std::min(kLimits.memory.of(size), kMostMemory), kLimits.unpacked.of(size),
                kLimits.seconds.of(size));
}

}  // namespace

Result<std::unique_ptr<RowSource>> open_parquet(const std::filesystem::path& file,
                                                std::chrono::milliseconds patience) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(file, error);
  const std::uintmax_t size = std::filesystem::file_size(whole, error);
  if (error)
    return Status(ErrorCode::kIo, format("Cannot read {}: {}", file.string(), error.message()));
  auto reader =
      ChildProcess::start(python_program(kParquetRows, {whole.string(), limits_text(size)}));
  if (!reader.ok()) {
    return Status(ErrorCode::kUnsupported,
                  format("{} is a Parquet file, which needs python3 with pyarrow (python3 -m pip "
                         "install {}): {}",
                         file.string(), kPyarrow, reader.status().message()));
  }
  auto source = std::make_unique<ParquetSource>(file, size, std::move(*reader), patience);
  NEAP_TRY(source->start());
  return std::unique_ptr<RowSource>(std::move(source));
}

}  // namespace neap::data
