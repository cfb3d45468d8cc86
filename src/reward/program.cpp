#include "reward/program.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/child_process.h"
#include "base/open_file.h"
#include "base/process.h"
#include "base/python.h"
#include "base/read_limits.h"
#include "reward/worker_environment.h"

namespace neap::reward {

// Text of src/reward/python_worker.py, embedded by CMake.
extern const char* const kPythonWorker;

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kImportTime = std::chrono::minutes(5);  // the user's file may import torch

// One copy of the program, and the request that it works on.
struct Worker {
  std::unique_ptr<ChildProcess> child;
  bool ready = false;  // it has reported that it is ready, if it does so
  bool sound = false;  // its last reply was a whole line, so the next one can be read
  std::optional<std::size_t> request;
  std::string_view unsent;
  std::string reply;
  Clock::time_point deadline;
};

class Program final : public Transport {
 public:
  Program(const spec::RewardFunctionConfig& config, const Setting& setting,
          ChildProcess::Program program)
      : config_(config),
        stop_(setting.stop),
        program_(std::move(program)),
        workers_(static_cast<std::size_t>(config.concurrency)) {}
  ~Program() override {
    ChildProcess::end_all(taken(workers_, [](const Worker&) { return true; }));
  }

  [[nodiscard]] Status start_first();
  [[nodiscard]] Status run(const std::vector<std::string>& requests, Replies& replies) override {
    RequestQueue queue(requests.size(), config_);
    Status status = run_all(requests, replies, queue);
    // After a failure the pending answers would arrive too late.
    ChildProcess::kill_all(taken(workers_, [](const Worker& w) { return w.request.has_value(); }));
    return status;
  }

 private:
  struct Failure {
    Worker* worker;
    Replies::Verdict why;
  };
  using Failed = std::vector<Failure>;

  // Takes the child processes of the workers for which `which` is true. These workers are then as
  // new.
  template <class Which>
  static std::vector<std::unique_ptr<ChildProcess>> taken(std::vector<Worker>& workers,
                                                          const Which& which) {
    std::vector<std::unique_ptr<ChildProcess>> out;
    for (Worker& worker : workers)
      if (which(worker)) out.push_back(std::exchange(worker, Worker()).child);
    return out;
  }
  [[nodiscard]] bool says_ready() const { return config_.kind == spec::RewardKind::kPython; }
  [[nodiscard]] bool stopped() const { return stop_ && stop_(); }
  [[nodiscard]] static Status interrupted() { return {ErrorCode::kCancelled, "Interrupted"}; }

  [[nodiscard]] Status start(Worker& worker) const {
    NEAP_TRY_ASSIGN(worker.child, ChildProcess::start(program_));
    worker.ready = !says_ready();
    worker.deadline = Clock::now() + (worker.ready ? reply_time() : kImportTime);
    return {};
  }
  [[nodiscard]] Clock::duration reply_time() const {
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(config_.timeout));
  }
  [[nodiscard]] Status run_all(const std::vector<std::string>& requests, Replies& replies,
                               RequestQueue& queue);
  [[nodiscard]] Status begin(Worker& worker, std::size_t request, std::string_view line) const;
  void wait() const;
  [[nodiscard]] Replies::Verdict work(Worker& worker, Replies& replies, RequestQueue& queue) const;
  [[nodiscard]] Status read(Worker& worker) const;
  [[nodiscard]] Status explained(const Worker& worker, Status why) const;
  [[nodiscard]] Result<std::optional<std::string>> reply_of(Worker& worker) const;
  [[nodiscard]] Status late(Worker& worker) const;
  [[nodiscard]] static Result<bool> take_line(Worker& worker, std::string& line);
  [[nodiscard]] static Status greeting(const std::string& line);
  [[nodiscard]] Status fail(const Failed& failed, Replies& replies, RequestQueue& queue);
  [[nodiscard]] Status named(const Status& why) const;

  spec::RewardFunctionConfig config_;
  std::function<bool()> stop_;
  ChildProcess::Program program_;
  std::vector<Worker> workers_;
};

Status Program::start_first() {
  Worker& worker = workers_.front();
  NEAP_TRY(start(worker));
  while (!worker.ready) {
    if (stopped()) return interrupted();
    std::array<pollfd, 2> files{
        {{worker.child->out(), POLLIN, 0}, {worker.child->err(), POLLIN, 0}}};
    (void)::poll(files.data(), files.size(), static_cast<int>(kStopPeriod.count()));
    worker.child->read_errors();
    NEAP_TRY(read(worker));
    std::string line;
    NEAP_TRY_ASSIGN(const bool whole, take_line(worker, line));
    if (whole) {
      NEAP_TRY(greeting(line));
      worker.ready = true;
    } else if (Clock::now() >= worker.deadline) {
      return late(worker);
    }
  }
  return {};
}

Status Program::run_all(const std::vector<std::string>& requests, Replies& replies,
                        RequestQueue& queue) {
  while (!queue.finished()) {
    if (stopped()) return interrupted();
    Failed failed;
    for (Worker& worker : workers_) {
      if (worker.request) continue;
      const auto next = queue.next();
      if (!next) break;
      if (Status status = begin(worker, *next, requests[*next]); !status.ok())
        failed.push_back({&worker, {std::move(status)}});
    }
    if (failed.empty()) wait();
    for (Worker& worker : workers_) {
      const bool known = std::any_of(failed.begin(), failed.end(),
                                     [&](const Failure& each) { return each.worker == &worker; });
      if (!worker.request || known) continue;
      if (Replies::Verdict verdict = work(worker, replies, queue); !verdict.status.ok())
        failed.push_back({&worker, std::move(verdict)});
    }
    NEAP_TRY(fail(failed, replies, queue));
  }
  return {};
}

// Sends a line to the worker. Fails if the worker has written without a request.
Status Program::begin(Worker& worker, std::size_t request, std::string_view line) const {
  worker.request = request;
  worker.unsent = line;
  worker.reply.clear();
  worker.sound = false;
  if (!worker.child) return start(worker);
  worker.deadline = Clock::now() + reply_time();
  NEAP_TRY(read(worker));
  if (worker.reply.empty()) return {};
  return {ErrorCode::kIo, "wrote more than one line for a request" + worker.child->recent_errors()};
}

void Program::wait() const {
  std::vector<pollfd> watched;
  auto first = Clock::time_point::max();
  for (const Worker& worker : workers_) {
    if (!worker.request) continue;
    first = std::min(first, worker.deadline);
    watched.push_back({worker.child->out(), POLLIN, 0});
    if (worker.child->err() >= 0) watched.push_back({worker.child->err(), POLLIN, 0});
    if (!worker.unsent.empty()) watched.push_back({worker.child->in(), POLLOUT, 0});
  }
  if (watched.empty()) return;
  const std::chrono::duration<double, std::milli> left = first - Clock::now();
  const double most = stop_ ? static_cast<double>(kStopPeriod.count()) : 1e6;
  (void)::poll(watched.data(), watched.size(),
               static_cast<int>(std::clamp(std::ceil(left.count()), 0.0, most)));
}

// Takes the first whole line of the worker's output. False if it is incomplete.
Result<bool> Program::take_line(Worker& worker, std::string& line) {
  const auto end = worker.reply.find('\n');
  if (end == std::string::npos) {
    if (Bytes(worker.reply.size()) <= read_limits::kReply.part) return false;
    return over_limit("wrote a line that", read_limits::kReply, Excess::kPart, 0, ErrorCode::kIo);
  }
  line = worker.reply.substr(0, end);
  worker.reply.erase(0, end + 1);
  return true;
}

Status Program::greeting(const std::string& line) {
  const auto said = parse_json(line, "greeting");
  if (said.ok() && said->is_object() && said->value("ready", false)) return {};
  return {ErrorCode::kInvalidArgument,
          said.ok() && said->is_object() ? said->value("error", line) : line};
}

Status Program::late(Worker& worker) const {
  const double seconds =
      worker.ready ? config_.timeout : std::chrono::duration<double>(kImportTime).count();
  return {ErrorCode::kTimeout,
          format("gave no {} in {} s{}", worker.ready ? "answer" : "sign that it has started",
                 seconds, worker.child->recent_errors())};
}

Status Program::read(Worker& worker) const {
  return explained(worker, worker.child->read(worker.reply));
}

// Explains the failure of a program that ended with success: what it should have done instead.
Status Program::explained(const Worker& worker, Status why) const {
  if (why.ok() || worker.child->exit_code() != 0) return why;
  return {why.code(),
          why.message() +
              (says_ready() ? ". The function must return, not end its process"
                            : ". The program must run on: it reads requests from stdin until that "
                              "ends, and writes one line of JSON for each at once (flush)")};
}

// Writes and reads without blocking. A whole line is the reply.
Result<std::optional<std::string>> Program::reply_of(Worker& worker) const {
  worker.child->read_errors();
  if (!worker.unsent.empty()) {
    const auto written = worker.child->write(worker.unsent);
    if (!written.ok()) return explained(worker, written.status());
    worker.unsent.remove_prefix(*written);
  }
  NEAP_TRY(read(worker));
  std::string line;
  NEAP_TRY_ASSIGN(bool whole, take_line(worker, line));
  if (whole && !worker.ready) {
    NEAP_TRY(greeting(line));
    worker.ready = true;
    worker.deadline = Clock::now() + reply_time();
    NEAP_TRY_ASSIGN(whole, take_line(worker, line));
  }
  if (!whole) {
    if (Clock::now() >= worker.deadline) return late(worker);
    return std::optional<std::string>();
  }
  if (!worker.unsent.empty())
    return Status(ErrorCode::kIo,
                  "answered before it had read the request" + worker.child->recent_errors());
  if (!worker.reply.empty())
    return Status(ErrorCode::kIo,
                  "wrote more than one line for a request" + worker.child->recent_errors());
  return std::optional(std::move(line));
}

Replies::Verdict Program::work(Worker& worker, Replies& replies, RequestQueue& queue) const {
  const auto line = reply_of(worker);
  if (!line.ok()) return {line.status()};
  if (!*line) return {};
  Replies::Verdict verdict = replies.accept(*worker.request, **line);
  worker.sound = says_ready();
  if (!verdict.status.ok()) {
    if (!worker.sound)
      verdict.status = {verdict.status.code(),
                        verdict.status.message() + worker.child->last_words()};
    return verdict;
  }
  worker.request.reset();
  queue.done();
  return {};
}

// Kills the failed workers together, unless only their answers are wrong, and sends their requests
// again.
Status Program::fail(const Failed& failed, Replies& replies, RequestQueue& queue) {
  if (failed.empty()) return {};
  Status out;
  for (const auto& [worker, why] : failed) {
    const auto final = queue.failed(*worker->request, why.status, why.again);
    if (final && out.ok()) {
      out = replies.give_up(*worker->request, named(*final));
      if (out.ok()) queue.done();
    }
    if (worker->sound) worker->request.reset();
  }
  ChildProcess::kill_all(taken(workers_, [&](const Worker& worker) {
    return std::any_of(failed.begin(), failed.end(), [&](const Failure& each) {
      return each.worker == &worker && !worker.sound;
    });
  }));
  return out;
}

Status Program::named(const Status& why) const {
  if (says_ready()) return {why.code(), format("the function {}", why.message())};
  std::string words;
  for (const std::string& word : config_.command) words += (words.empty() ? "" : " ") + word;
  return {why.code(), format("the program \"{}\" {}", words, why.message())};
}

Result<ChildProcess::Program> program_of(const spec::RewardFunctionConfig& config,
                                         const Setting& setting) {
  NEAP_TRY_ASSIGN(std::vector<std::string> environment, worker_environment(config.env));
  ChildProcess::Program out{config.command};
  if (config.kind == spec::RewardKind::kPython) {
    const std::filesystem::path file = std::filesystem::absolute(setting.folder / config.path);
    // Python says why it cannot open a file, but would read a device or a large file whole.
    if (const auto source = open_regular_file(file, read_limits::kJudge);
        source.status().code() == ErrorCode::kInvalidArgument)
      return source.status();
    const std::vector<std::string> python = {"python3"};
    out = python_program(kPythonWorker,
                         {file.lexically_normal().string(), config.function, config.on_failure},
                         config.command.empty() ? python : config.command, std::move(environment));
  } else {
    out.environment = std::move(environment);
  }
  out.folder = setting.folder;
  out.memory_limit = config.memory_limit.is_zero() ? machine_memory() / 2 : config.memory_limit;
  out.file_size_limit = config.file_size_limit;
  return out;
}

}  // namespace

Result<std::unique_ptr<Transport>> start_program(const spec::RewardFunctionConfig& config,
                                                 const Setting& setting) {
  NEAP_TRY_ASSIGN(ChildProcess::Program described, program_of(config, setting));
  auto program = std::make_unique<Program>(config, setting, std::move(described));
  NEAP_TRY(program->start_first());
  return std::unique_ptr<Transport>(std::move(program));
}

}  // namespace neap::reward
