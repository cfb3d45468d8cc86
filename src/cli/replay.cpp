// neap replay SNAPSHOT: accuracy of the replay, other allocator settings, advice, and causes of
// fragmentation.
#include <charconv>
#include <thread>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/program_commands.h"
#include "replay/pool_inference.h"
#include "replay/summary.h"
#include "trace/reader.h"

namespace neap::cli {
namespace {

/// Printed times are rounded to 1 ms. Accept times half of that outside of the recording, in ns, so
/// that a printed end is accepted.
constexpr double kTimeRounding = 5e5;

class ReplayCommand : public Command {
 public:
  [[nodiscard]] std::string name() const override { return "replay"; }
  [[nodiscard]] std::string summary() const override {
    return "Explain a PyTorch memory snapshot: what held memory, and which allocator settings fit";
  }

  void declare(CLI::App& app) override {
    app.add_option("SNAPSHOT", path_,
                   "torch.cuda.memory._dump_snapshot file (plain, gzip, zstd) or Neap trace")
        ->required();
    app.add_option("--settings", settings_path_,
                   "file of settings to try, one JSON object per line: conf, empty, fraction "
                   "(docs/replay.md)")
        ->type_name("FILE");
    app.add_option("--conf", confs_, "PYTORCH_CUDA_ALLOC_CONF to try; may be repeated")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    app.add_option("--empty", empties_,
                   "phases after which to try empty_cache(): none, inference, training, all, "
                   "recorded, or names with commas; may be repeated")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    app.add_option("--capacity", capacity_text_,
                   "memory of the device, as 139.80GiB; default: no limit")
        ->type_name("SIZE");
    app.add_option("--fraction", fraction_,
                   "set_per_process_memory_fraction for --conf; default: unset");
    app.add_option("--device", device_, "device number; default: the one with most allocations");
    app.add_option("--phase-at", phases_at_,
                   "phase that begins at a time or shows in a stack: NAME=1.5s, NAME=@FUNCTION; "
                   "replaces recorded phases; may be repeated")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    app.add_option(
           "--policy", policy_,
           "version of PyTorch whose allocator is replayed, as 2.11, or ascend; default: newest")
        ->type_name("VERSION");
    app.add_option("--blame-at", blame_at_, "seconds since the trace began; default: at the peak");
    app.add_option("--orders", orders_,
                   "address orders of new segments to try; 1: no range; default: 12")
        ->check(CLI::Range(1, 1000));
    app.add_option("--threads", threads_, "replays at once; default: one per core");
    app.add_flag("--no-advice", no_advice_, "skip the search for better settings");
    app.add_flag("--json", json_, "print JSON (docs/json.md)");
  }

  int run() override {
    const Status status = replay();
    return status.ok() ? 0 : fail(status);
  }

 private:
  Status replay() {
    if (!capacity_text_.empty()) {
      NEAP_TRY_ASSIGN(capacity_, parse_bytes(capacity_text_));
      if (capacity_.is_zero()) return {ErrorCode::kInvalidArgument, "--capacity is zero"};
    }
    NEAP_TRY(check_policy());
    if (fraction_ != 0 && confs_.empty() && empties_.empty())
      return {ErrorCode::kInvalidArgument,
              "--fraction belongs to --conf (\"\" for the defaults) or --empty: give one of them"};
    replay::PrepareOptions prepare_options;
    prepare_options.capacity = capacity_;
    for (const std::string& text : phases_at_) {
      NEAP_TRY_ASSIGN(auto at, replay::PhaseAt::parse(text));
      prepare_options.phases_at.push_back(std::move(at));
    }
    trace::ReadOptions read_options;
    read_options.progress = true;
    NEAP_TRY_ASSIGN(const trace::Recording recording, trace::read(path_, read_options));
    for (const std::string& warning : recording.warnings) log::warn(warning);
    if (!recording.truncated.empty()) log::warn(recording.truncated);
    NEAP_TRY_ASSIGN(const trace::DeviceRecording* device, choose_device(recording));
    NEAP_TRY_ASSIGN(replay::Workload workload,
                    replay::prepare(recording, *device, prepare_options));
    NEAP_TRY(check_phases(workload));
    NEAP_TRY(check_blame_time(*device));
    if (!policy_.empty()) workload.version = cache::PolicyVersion::for_version(policy_);

    replay::Summary summary;
    summary.workload = &workload;
    summary.capacity = capacity_;
    NEAP_TRY_ASSIGN(summary.fidelity, replay::reproduce(workload, {.capacity = capacity_}));
    if (!summary.fidelity.holds())
      log::warn(format("Only {} of {} addresses are reproduced: the figures below show a tendency",
                       summary.fidelity.allocs_equal, summary.fidelity.allocs));
    NEAP_TRY_ASSIGN(summary.cut, replay::find_cut(workload, summary.fidelity));
    NEAP_TRY(add_what_if(workload, summary));
    NEAP_TRY(add_advice(workload, summary));
    NEAP_TRY(add_blame(workload, summary));
    std::string text =
        json_ ? json_text(replay::to_json(summary), 2) + "\n" : replay::to_text(summary);
    NEAP_TRY(write_output(text));
    return ok_status();
  }

  /// Accepts "2.11", "2.11.0" or "ascend".
  Status check_policy() const {
    if (policy_.empty() || policy_ == "ascend") return ok_status();
    unsigned major = 0;
    unsigned minor = 0;
    const char* const end = policy_.data() + policy_.size();
    const auto [dot, wrong] = std::from_chars(policy_.data(), end, major);
    if (wrong == std::errc() && major >= 2 && dot != end && *dot == '.' &&
        std::from_chars(dot + 1, end, minor).ec == std::errc())
      return ok_status();
    return {
        ErrorCode::kInvalidArgument,
        format("--policy \"{}\" is neither a PyTorch version from 2.0 on, as in 2.11, nor ascend",
               policy_)};
  }

  /// Without this check, a phase that never begins would be silently missing.
  Status check_phases(const replay::Workload& workload) const {
    for (const std::string& text : phases_at_) {
      NEAP_TRY_ASSIGN(const auto at, replay::PhaseAt::parse(text));
      const auto& names = workload.phase_names;
      if (std::find(names.begin(), names.end(), at.name) != names.end()) continue;
      return {ErrorCode::kInvalidArgument,
              format("--phase-at {}: {}", text,
                     at.function.empty()
                         ? "the recording ends before, at " + last_time(*workload.device)
                         : format("no recorded stack of an allocation holds a function \"{}\"",
                                  at.function))};
    }
    return ok_status();
  }

  Status check_blame_time(const trace::DeviceRecording& device) const {
    if (!blame_at_) return ok_status();
    if (*blame_at_ >= 0 &&
        *blame_at_ * 1e9 <= static_cast<double>(device.events.back().time_ns) + kTimeRounding)
      return ok_status();
    return {ErrorCode::kInvalidArgument,
            format("--blame-at {} is outside of the recording, which lasts from 0 to {}",
                   *blame_at_, last_time(device))};
  }

  static std::string last_time(const trace::DeviceRecording& device) {
    return format("{:.3f} s", static_cast<double>(device.events.back().time_ns) / 1e9);
  }

  /// Counts allocations: phase marks alone are not a history.
  static auto count_allocs(const trace::DeviceRecording& device) {
    return std::count_if(device.events.begin(), device.events.end(), [](const trace::Event& event) {
      return event.kind == trace::EventKind::kAlloc;
    });
  }

  Result<const trace::DeviceRecording*> choose_device(const trace::Recording& recording) const {
    constexpr std::string_view kNoHistory =
        "the history was not recorded (torch.cuda.memory._record_memory_history)";
    const trace::DeviceRecording* chosen = nullptr;
    for (const trace::DeviceRecording& device : recording.devices) {
      if (device_ >= 0 ? device.ordinal == device_
                       : chosen == nullptr || count_allocs(device) > count_allocs(*chosen))
        chosen = &device;
    }
    if (chosen == nullptr)
      return Status(ErrorCode::kNotFound,
                    device_ >= 0 ? format("{} holds nothing about device {}", path_, device_)
                                 : format("{} holds no device with events or segments: {}", path_,
                                          kNoHistory));
    if (count_allocs(*chosen) == 0)
      return Status(ErrorCode::kNotFound, format("{} holds no allocations of device {}: {}", path_,
                                                 chosen->ordinal, kNoHistory));
    return chosen;
  }

  [[nodiscard]] Bytes limit() const { return capacity_.is_zero() ? replay::kNoLimit : capacity_; }
  [[nodiscard]] unsigned threads() const {
    return threads_ > 0 ? static_cast<unsigned>(threads_)
                        : std::max(1u, std::thread::hardware_concurrency());
  }

  [[nodiscard]] std::size_t orders() const { return static_cast<std::size_t>(orders_); }

  Result<std::vector<replay::Scenario>> scenarios(const replay::Workload& workload) const {
    std::vector<replay::Scenario> list;
    if (!settings_path_.empty()) {
      NEAP_TRY_ASSIGN(const std::string text,
                      read_file(settings_path_, read_limits::kReplaySettings));
      NEAP_TRY_ASSIGN(list, replay::read_scenarios(text, settings_path_, workload.version));
    }
    std::vector<std::string> confs = confs_;
    if (confs.empty() && !empties_.empty()) confs.emplace_back();
    for (const std::string& conf : confs) {
      for (const std::string& empty :
           empties_.empty() ? std::vector<std::string>{"none"} : empties_) {
        NEAP_TRY_ASSIGN(auto scenario,
                        replay::Scenario::make(conf, empty, fraction_, workload.version));
        list.push_back(std::move(scenario));
      }
    }
    for (const replay::Scenario& scenario : list) {
      if (scenario.fraction > 0 && capacity_.is_zero())
        return Status(ErrorCode::kInvalidArgument,
                      format("A memory fraction ({}) needs --capacity, the device's memory",
                             scenario.fraction));
      for (const std::string& name : scenario.empty.names)
        if (std::none_of(workload.phase_names.begin(), workload.phase_names.end(),
                         [&](const std::string& phase) {
                           return replay::without_prefix(phase) == replay::without_prefix(name);
                         }))
          log::warn(format("No phase is called \"{}\": nothing is emptied there", name));
    }
    return list;
  }

  Status add_what_if(const replay::Workload& workload, replay::Summary& summary) {
    NEAP_TRY_ASSIGN(std::vector<replay::Scenario> list, scenarios(workload));
    NEAP_TRY_ASSIGN(summary.baseline,
                    replay::run_scenario(workload, replay::recorded_scenario(workload), limit()));
    if (list.empty()) return ok_status();
    Progress progress("Replaying", list.size(), "settings");
    auto outcomes = replay::run_scenarios(
        workload, list, limit(), threads(), [&](std::size_t done) { progress.update(done); },
        orders());
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!outcomes[i].ok())
        return Status(outcomes[i].status())
            .with_context(format("replaying \"{}\", {}", list[i].conf, list[i].empty.to_string()));
      summary.what_if.push_back({std::move(list[i]), std::move(*outcomes[i])});
    }
    return ok_status();
  }

  Status add_advice(const replay::Workload& workload, replay::Summary& summary) {
    if (no_advice_) return ok_status();
    Progress progress("Searching", 0, "settings");
    replay::AdviceOptions options;
    options.capacity = capacity_;
    options.cut = summary.cut;
    options.recorded_peak = summary.fidelity.stats.peak_reserved;
    options.threads = threads();
    options.orders = orders();
    options.progress = [&](std::size_t done, std::size_t total) {
      progress.update(done, format("of {}", total));
    };
    NEAP_TRY_ASSIGN(summary.advice, replay::advise(workload, options));
    return ok_status();
  }

  Status add_blame(const replay::Workload& workload, replay::Summary& summary) {
    std::uint32_t event = 0;
    if (blame_at_) {
      event = replay::event_at(workload, static_cast<std::uint64_t>(*blame_at_ * 1e9));
    } else {
      NEAP_TRY_ASSIGN(event, replay::peak_event(workload, capacity_));
    }
    NEAP_TRY_ASSIGN(summary.blame, replay::blame(workload, event, capacity_));
    return ok_status();
  }

  std::string path_;
  std::string settings_path_;
  std::vector<std::string> confs_;
  std::vector<std::string> empties_;
  std::string capacity_text_;
  double fraction_ = 0;
  int device_ = -1;
  std::vector<std::string> phases_at_;
  std::string policy_;
  std::optional<double> blame_at_;
  int threads_ = 0;
  int orders_ = static_cast<int>(replay::kDefaultAddressOrders);
  bool no_advice_ = false;
  bool json_ = false;
  Bytes capacity_;
};

}  // namespace

std::unique_ptr<Command> make_replay_command() {
  return std::make_unique<ReplayCommand>();
}

}  // namespace neap::cli
