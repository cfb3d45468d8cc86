// `neap run -- COMMAND`: runs any CUDA program under the hook. Shows its allocations by tag while
// it runs and at its end, and can record a trace.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <map>
#include <string>

#include "base/file.h"
#include "base/format.h"
#include "base/installation.h"
#include "base/json.h"
#include "base/log.h"
#include "base/tag.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/program_commands.h"
#include "cli/signalled_child.h"

extern char** environ;

namespace neap::cli {
namespace {

namespace fs = std::filesystem;
constexpr auto kLook = std::chrono::milliseconds(250);

using Reports = std::multimap<int, Json>;

/// A folder in which the command's processes publish their statistics. Removed at the end.
class LiveFolder {
 public:
  LiveFolder() = default;
  LiveFolder(const LiveFolder&) = delete;
  LiveFolder& operator=(const LiveFolder&) = delete;
  ~LiveFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
    if (lock_ >= 0) ::close(lock_);
  }
  Status make() {
    const char* base = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    remove_left(base);
    std::string pattern = format("{}/{}XXXXXX", base, kPrefix);
    if (::mkdtemp(pattern.data()) == nullptr) {
      return {ErrorCode::kIo,
              format("Cannot make a folder like {}: {}", pattern, system_reason(errno))};
    }
    path_ = pattern;
    lock_ = lock(path_);
    return {};
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Reads the last report of each hook library by process id. Skips files that are broken or being
  /// replaced.
  [[nodiscard]] Reports read() const {
    Reports found;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(path_, error)) {
      if (entry.path().extension() != ".json") continue;
      const int process = std::atoi(entry.path().stem().c_str());
      auto text = read_file(entry.path(), read_limits::kRunState);
      if (process <= 0 || !text.ok()) continue;
      auto parsed = parse_json(*text, entry.path().string());
      if (parsed.ok() && parsed->is_object()) found.emplace(process, std::move(*parsed));
    }
    return found;
  }

 private:
  static constexpr std::string_view kPrefix = "neap-run-";
  static constexpr auto kSettled = std::chrono::minutes(1);

  /// Returns a descriptor that locks the folder until its process ends, or -1.
  static int lock(const std::string& path) {
    const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0 || ::flock(folder, LOCK_EX | LOCK_NB) == 0) return folder;
    ::close(folder);
    return -1;
  }

  /// Removes folders of this user whose `neap run` was killed: their lock is free. Skips a recently
  /// changed folder, because it may be about to be locked or its program may still write to it.
  static void remove_left(const char* base) {
    std::error_code error;
    for (fs::directory_iterator it(base, error), end; !error && it != end; it.increment(error)) {
      const fs::path& path = it->path();
      struct stat found {};
      if (!path.filename().string().starts_with(kPrefix) || ::lstat(path.c_str(), &found) != 0 ||
          !S_ISDIR(found.st_mode) || found.st_uid != ::geteuid() ||
          std::time(nullptr) - found.st_mtime < std::chrono::seconds(kSettled).count())
        continue;
      const int folder = lock(path.string());
      if (folder < 0) continue;
      std::error_code ignored;
      fs::remove_all(path, ignored);
      ::close(folder);
    }
  }

  std::string path_;
  int lock_ = -1;
};

std::uint64_t number(const Json& from, const char* key) {
  const auto it = from.find(key);
  return it != from.end() && it->is_number() ? it->get<std::uint64_t>() : 0;
}

struct Totals {
  std::map<std::string, std::array<std::uint64_t, 4>> tags;  ///< virtual, mapped, host, disk
  std::uint64_t outside = 0, store = 0;
};
Totals sum_of(const Reports& processes) {
  Totals totals;
  for (const auto& [process, report] : processes) {
    totals.outside += number(report.value("outside", Json::object()), "bytes");
    for (const Json& device : report.value("devices", Json::array())) {
      totals.store += number(device, "page_store");
      for (const Json& tag : device.value("tags", Json::array())) {
        auto& row = totals.tags[tag.value("tag", "")];
        row[0] += number(tag, "virtual");
        row[1] += number(tag, "mapped");
        row[2] += number(tag, "host");
        row[3] += number(tag, "disk");
      }
    }
  }
  return totals;
}

/// Current memory on one line: "outside 1.20 GiB  weights 15.2 GiB  kv paused 64.0 GiB".
std::string live_line(const Totals& totals) {
  std::string line = format("outside {}", Bytes(totals.outside));
  for (const auto& [tag, row] : totals.tags) {
    if (row[0] == 0) continue;
    line += row[1] > 0 ? format("  {} {}", printable(tag), Bytes(row[1]))
                       : format("  {} paused", printable(tag));
  }
  if (totals.store > 0) line += format("  kept {}", Bytes(totals.store));
  return line;
}

/// A line on a terminal that the next one replaces. Writes nothing if stderr is a file.
class LiveLine {
 public:
  explicit LiveLine(bool wanted) : on_(wanted && ::isatty(STDERR_FILENO) == 1) {}
  ~LiveLine() { clear(); }
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;
  [[nodiscard]] bool on() const { return on_; }
  void show(const std::string& text) {
    if (!on_ || text == shown_) return;
    shown_ = text;
    std::fprintf(stderr, "\r\033[2Kneap: %.160s", text.c_str());
    std::fflush(stderr);
  }
  void clear() {
    if (!shown_.empty()) std::fputs("\r\033[2K", stderr);
    shown_.clear();
  }

 private:
  bool on_;
  std::string shown_;
};

}  // namespace

class RunCommand : public Command {
 public:
  [[nodiscard]] std::string name() const override { return "run"; }
  [[nodiscard]] std::string summary() const override {
    return "Run a CUDA program under the hook: memory by tag while it runs, and a trace";
  }
  void declare(CLI::App& app) override {
    app.add_option("--trace", trace_,
                   "write a trace for `neap report`; {pid} becomes the process id")
        ->type_name("FILE");
    app.add_option("--tag", tag_, "make every allocation a region of this tag")->type_name("TAG");
    app.add_option("--policy", policy_, "what a pause keeps of that tag")
        ->check(CLI::IsMember({"discard", "host", "disk", "zero"}))
        ->default_str("discard");
    app.add_flag("--json", json_,
                 "print JSON at the end (docs/json.md); the command's output goes to stderr");
    app.add_flag("--quiet", quiet_, "no live line, no summary");
    app.add_option("COMMAND", command_, "the program and its arguments, after --")->required();
    app.positionals_at_end();
  }

  int run() override {
    const auto hook = find_library(kHookLibrary, kHookLibraryVariable);
    if (!hook.ok()) return fail(hook.status());
    if (const Status usable = check_options(); !usable.ok()) return fail(usable);
    LiveFolder folder;
    if (const Status made = folder.make(); !made.ok()) return fail(made);
    auto code = run_command(hook->string(), folder);
    if (!code.ok()) return fail(code.status());
    const auto processes = folder.read();
    if (json_) {
      Json list = Json::array();
      for (const auto& [process, report] : processes) list.push_back(report);
      const Json whole = {{"schema", 1}, {"exit", *code}, {"processes", std::move(list)}};
      std::printf("%s\n", json_text(whole, 2).c_str());
    } else if (!quiet_) {
      summarize(processes);
    }
    return *code;
  }

 private:
  /// Rejects options that the hook could only warn about after the program has started.
  [[nodiscard]] Status check_options() const {
    if (!tag_.empty()) NEAP_TRY(check_tag(tag_));
    if (trace_.empty()) return {};
    const fs::path folder = fs::absolute(trace_).parent_path();
    if (folder.string().find("{pid}") != std::string::npos) return {};
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored))
      return {ErrorCode::kNotFound,
              format("--trace {}: {} is not a folder", trace_, folder.string())};
    if (fs::is_directory(trace_, ignored))
      return {ErrorCode::kInvalidArgument, format("--trace {}: that is a folder", trace_)};
    if (::access(folder.c_str(), W_OK) != 0)
      return {ErrorCode::kIo, format("--trace {}: {}", trace_, system_reason(errno))};
    return {};
  }

  Result<int> run_command(const std::string& hook, const LiveFolder& folder) {
    LiveLine line(!quiet_ && !json_);
    const SignalledChild child{command_, child_environment(hook, folder.path()), json_};
    if (!line.on()) return run_child(child, kLook, nullptr);
    return run_child(child, kLook, [&] { line.show(live_line(sum_of(folder.read()))); });
  }

  [[nodiscard]] std::vector<std::string> child_environment(const std::string& hook,
                                                           const std::string& folder) const {
    std::vector<std::string> entries;
    std::string preload = hook;
    for (char** at = environ; *at != nullptr; ++at) {
      const std::string_view entry = *at;
      if (entry.starts_with("LD_PRELOAD=")) {
        if (const auto before = entry.substr(11); !before.empty())
          preload += ":" + std::string(before);
      } else if (!entry.starts_with("NEAP_LIVE=") &&
                 !(entry.starts_with("NEAP_TRACE=") && !trace_.empty())) {
        entries.emplace_back(entry);
      }
    }
    entries.push_back("LD_PRELOAD=" + preload);
    entries.push_back("NEAP_LIVE=" + folder);
    if (!trace_.empty()) entries.push_back("NEAP_TRACE=" + fs::absolute(trace_).string());
    if (!tag_.empty()) {
      entries.push_back("NEAP_TAG=" + tag_);
      entries.push_back("NEAP_POLICY=" + policy_);
    }
    return entries;
  }

  void summarize(const Reports& processes) const {
    if (processes.empty()) {
      log::info(
          "the hook saw no allocation of the command. Programs that link the CUDA runtime "
          "statically "
          "cannot be hooked");
      if (!trace_.empty()) log::info("no trace was written: it begins with the first allocation");
      return;
    }
    for (const auto& [process, report] : processes) {
      const Json outside = report.value("outside", Json::object());
      std::fprintf(stderr, "neap: process %d: %llu calls passed on, peak %s\n", process,
                   static_cast<unsigned long long>(number(outside, "calls")),
                   to_string(Bytes(number(outside, "peak_bytes"))).c_str());
      for (const Json& device : report.value("devices", Json::array())) {
        std::fprintf(stderr, "neap:   device %llu: peak %s held\n",
                     static_cast<unsigned long long>(number(device, "ordinal")),
                     to_string(Bytes(number(device, "peak_physical"))).c_str());
        for (const Json& tag : device.value("tags", Json::array())) {
          std::fprintf(stderr, "neap:     %-24s %10s in %llu regions, %llu pauses, %llu resumes\n",
                       printable(tag.value("tag", "")).c_str(),
                       to_string(Bytes(number(tag, "virtual"))).c_str(),
                       static_cast<unsigned long long>(number(tag, "regions")),
                       static_cast<unsigned long long>(number(tag, "pauses")),
                       static_cast<unsigned long long>(number(tag, "resumes")));
        }
      }
    }
    if (!trace_.empty()) std::fprintf(stderr, "neap: trace in %s\n", trace_.c_str());
  }

  std::string trace_, tag_, policy_ = "discard";
  std::vector<std::string> command_;
  bool json_ = false, quiet_ = false;
};

std::unique_ptr<Command> make_run_command() {
  return std::make_unique<RunCommand>();
}

}  // namespace neap::cli
