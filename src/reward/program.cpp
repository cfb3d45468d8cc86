#include "reward/program.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/child_process.h"

namespace neap::reward {
namespace {

using Clock = std::chrono::steady_clock;

// One copy of the program and the line that it works on.
struct Worker {
  std::unique_ptr<ChildProcess> child;
  std::optional<std::size_t> request;
  std::string_view unsent;
  std::string reply;
  Clock::time_point deadline;
};

class Program final : public Transport {
 public:
  Program(const spec::RewardFunctionConfig& config, std::filesystem::path folder)
      : config_(config), folder_(std::move(folder)) {
    for (std::int64_t i = 0; i < config.concurrency; ++i) workers_.emplace_back();
  }
  ~Program() override {
    // All see the end of their stdin before the first is waited for.
    for (Worker& worker : workers_)
      if (worker.child) worker.child->close_stdin();
  }
  [[nodiscard]] Status start(Worker& worker) const {
    NEAP_TRY_ASSIGN(worker.child, ChildProcess::start({config_.command, folder_}));
    return {};
  }
  [[nodiscard]] Status start_first() { return start(workers_.front()); }

  [[nodiscard]] Status run(const std::vector<std::string>& requests,
                           const Accept& accept) override {
    RequestQueue queue(requests.size(), config_.retries);
    const Status status = run_all(requests, accept, queue);
    for (Worker& worker : workers_)
      if (worker.request) give_up(worker);  // after a failure: the answer would come too late
    return status;
  }

 private:
  [[nodiscard]] Status run_all(const std::vector<std::string>& requests, const Accept& accept,
                               RequestQueue& queue) {
    while (!queue.finished()) {
      for (Worker& worker : workers_) {
        if (worker.request) continue;
        const auto next = queue.next();
        if (!next) break;
        NEAP_TRY(begin(worker, *next, requests[*next], queue));
      }
      wait();
      for (Worker& worker : workers_) {
        if (!worker.request) continue;
        if (Status status = work(worker, accept, queue); !status.ok())
          NEAP_TRY(fail(worker, status, queue));
      }
    }
    return {};
  }

  // Gives the worker a line. What it wrote without being asked is an error.
  [[nodiscard]] Status begin(Worker& worker, std::size_t request, std::string_view line,
                             RequestQueue& queue) {
    worker.request = request;
    worker.unsent = line;
    worker.reply.clear();
    worker.deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                         std::chrono::duration<double>(config_.timeout));
    if (!worker.child) {
      const Status started = start(worker);
      return started.ok() ? started : fail(worker, started, queue);
    }
    std::string early;
    Status status = worker.child->read(early);
    if (status.ok() && !early.empty())
      status = Status(ErrorCode::kCorrupt,
                      "wrote more than one line for a request" + worker.child->last_words());
    return status.ok() ? status : fail(worker, status, queue);
  }

  void wait() {
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
    (void)::poll(watched.data(), watched.size(),
                 static_cast<int>(std::clamp(std::ceil(left.count()), 0.0, 1e6)));
  }

  // Writes and reads what goes; a whole line is the reply.
  [[nodiscard]] Status work(Worker& worker, const Accept& accept, RequestQueue& queue) {
    worker.child->read_errors();
    if (!worker.unsent.empty()) {
      NEAP_TRY_ASSIGN(const std::size_t written, worker.child->write(worker.unsent));
      worker.unsent.remove_prefix(written);
    }
    const std::size_t before = worker.reply.size();  // has no end of line
    NEAP_TRY(worker.child->read(worker.reply));
    const auto end = worker.reply.find('\n', before);
    if (end == std::string::npos) {
      if (worker.reply.size() > kMaxReplyBytes)
        return {ErrorCode::kCorrupt,
                format("wrote {} MiB without an end of line", worker.reply.size() >> 20)};
      if (Clock::now() < worker.deadline) return {};
      return {ErrorCode::kTimeout,
              format("gave no answer in {} s{}", config_.timeout, worker.child->last_words())};
    }
    if (!worker.unsent.empty())
      return {ErrorCode::kCorrupt,
              "answered before it had read the request" + worker.child->last_words()};
    if (end + 1 < worker.reply.size())
      return {ErrorCode::kCorrupt,
              "wrote more than one line for a request" + worker.child->last_words()};
    const Status accepted = accept(*worker.request, std::string_view(worker.reply).substr(0, end));
    if (!accepted.ok()) return {accepted.code(), accepted.message() + worker.child->last_words()};
    worker.request.reset();
    queue.done();
    return {};
  }

  [[nodiscard]] Status fail(Worker& worker, const Status& why, RequestQueue& queue) {
    const std::size_t request = *worker.request;
    give_up(worker);
    Status final = queue.failed(request, why);
    if (final.ok()) return final;
    std::string words;
    for (const std::string& word : config_.command) words += (words.empty() ? "" : " ") + word;
    return {final.code(), format("the program \"{}\" {}", words, final.message())};
  }

  static void give_up(Worker& worker) {
    if (worker.child) worker.child->kill();
    worker.child.reset();
    worker.request.reset();
    worker.unsent = {};
  }

  spec::RewardFunctionConfig config_;
  std::filesystem::path folder_;
  std::vector<Worker> workers_;
};

}  // namespace

Result<std::unique_ptr<Transport>> start_program(const spec::RewardFunctionConfig& config,
                                                 const std::filesystem::path& folder) {
  auto program = std::make_unique<Program>(config, folder);
  NEAP_TRY(program->start_first());
  return std::unique_ptr<Transport>(std::move(program));
}

}  // namespace neap::reward
