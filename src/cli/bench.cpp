// neap bench: the limits of this machine, and how close Neap gets to them.
#include <cstdio>
#include <filesystem>

#include "base/file.h"
#include "base/format.h"
#include "base/installation.h"
#include "base/log.h"
#include "base/progress.h"
#include "bench/bench.h"
#include "cli/command.h"
#include "cli/program_commands.h"
#include "cli/version.h"

namespace neap::cli {
namespace {

std::string number(double value) {
  return value >= 100  ? format("{:.0f}", value)
         : value >= 10 ? format("{:.1f}", value)
                       : format("{:.2f}", value);
}

class BenchCommand final : public Command {
 public:
  [[nodiscard]] std::string name() const override { return "bench"; }
  [[nodiscard]] std::string summary() const override {
    return "Compare Neap with bare copies and driver calls on this machine";
  }

  void declare(CLI::App& app) override {
    app.add_option("--device", settings_.device,
                   "auto, cuda or cpu; default: auto, the first GPU, else the CPU");
    app.add_option(
           "--size", size_text_,
           "size of the largest tag; default: 64GiB on a GPU, 1GiB on the CPU, less if memory "
           "is short")
        ->type_name("SIZE");
    app.add_option("--cycles", settings_.cycles,
                   "repetitions of each measurement; default: 20 on a GPU, 7 on the CPU")
        ->check(CLI::Range(1, 1000000));
    app.add_option("--filter", settings_.filter,
                   "only measurements whose name (--list) contains this; may be repeated")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    app.add_flag("--quick", settings_.quick,
                 "8GiB on a GPU, 128MiB on the CPU, 3 cycles: seconds instead of minutes");
    app.add_option("--disk-folder", settings_.disk_folder,
                   "folder of the disk measurements; default: TMPDIR, or /tmp")
        ->type_name("FOLDER");
    app.add_flag("--list", list_, "only list the measurements");
    app.add_flag("--json", json_, "print JSON");
    app.add_option("--import-child", import_child_, "the hand-over's other process")->group("");
  }

  int run() override {
    const Status status = import_child_ >= 0 ? bench::import_child(settings_.device, import_child_)
                          : list_            ? list()
                                             : measure();
    return status.ok() ? 0 : fail(status);
  }

 private:
  static Status list() {
    for (const bench::Case& one : bench::cases())
      std::printf("%-18s %s%s\n", std::string(one.name).c_str(), std::string(one.says).c_str(),
                  one.needs_cuda ? " (GPU)" : "");
    return {};
  }

  Status measure() {
    if (!size_text_.empty()) {
      NEAP_TRY_ASSIGN(settings_.size, parse_bytes(size_text_));
      if (settings_.size < 64_MiB)
        return {ErrorCode::kInvalidArgument, format("--size {}: at least 64MiB", size_text_)};
    }
    settings_.import_child = {program_file().string(), name()};
    if (const auto hook = find_library(kHookLibrary, kHookLibraryVariable); hook.ok())
      settings_.hook_library = hook->string();
    NEAP_TRY_ASSIGN(auto bench, bench::Bench::make(settings_, [this](const bench::Row& row) {
                      rows_.push_back(row);
                    }));
    NEAP_TRY_ASSIGN(const auto wanted, bench::wanted_cases(bench));
    Json out;
    out["schema"] = 1;
    out["neap"] = kVersion;
    out["environment"] = bench.environment();
    Json left_out = Json::array();
    Status failed;
    {
      Progress progress("Measuring", wanted.size(), "measurements");
      for (const bench::Case* one : wanted) {
        progress.update(static_cast<std::uint64_t>(done_++), std::string(one->name));
        Status status = one->run(bench);
        if (status.ok()) continue;
        left_out.push_back({{"case", one->name}, {"reason", status.message()}});
        const bool missing =
            status.code() == ErrorCode::kUnsupported || status.code() == ErrorCode::kNotFound;
        log::warn(format("{} is left out: {}", one->name, status.message()));
        if (!missing && failed.ok())
          failed = std::move(status).with_context(format("measuring {}", one->name));
      }
      progress.update(wanted.size());
    }
    out["left_out"] = std::move(left_out);
    out["rows"] = Json::array();
    for (const bench::Row& row : rows_) out["rows"].push_back(to_json(row));
    const std::string text = json_ ? json_text(out, 2) + "\n" : table(out["environment"]);
    NEAP_TRY(write_output(text));
    return failed;
  }

  [[nodiscard]] std::string table(const Json& environment) const {
    const auto bytes = [&](const char* key) {
      return to_string(Bytes(environment[key].get<std::uint64_t>()));
    };
    std::string text = format(
        "{}: tags of {}, weights of {}, medians of {} cycles\n\n{:<23}{:<32}{:>12}{:>16}{:>9}  "
        "{}\n",
        environment.value("name", "device"), bytes("size"), bytes("weights"),
        environment["cycles"].get<int>(), "measurement", "", "limit", "measured", "reached",
        "the limit is");
    std::string last;
    for (const bench::Row& row : rows_) {
      const double reached = row.reached();
      text += format("{:<23}{:<32}{:>12}{:>11} {:<4}{:>9}  {}\n", row.name == last ? "" : row.name,
                     row.what, row.limit.empty() ? "" : number(row.limit.median()),
                     number(row.measured.median()), row.unit,
                     reached > 0 ? format("{:.0f} %", 100 * reached) : "", row.limit_from);
      last = row.name;
    }
    return text;
  }

  bench::Settings settings_;
  std::string size_text_;
  int import_child_ = -1;
  int done_ = 0;
  bool list_ = false;
  bool json_ = false;
  std::vector<bench::Row> rows_;
};

}  // namespace

std::unique_ptr<Command> make_bench_command() {
  return std::make_unique<BenchCommand>();
}

}  // namespace neap::cli
