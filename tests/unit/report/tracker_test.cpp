// The process that talks to W&B and MLflow, with stand-ins for their packages.
#include "report/tracker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "base/file.h"
#include "unit/report/temporary_folder.h"

namespace neap::report {
namespace {

using testing::HasSubstr;

class TrackerTest : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("PYTHONPATH", folder_.path().c_str(), 1);
    options_ = {"wandb", folder_.path(), "neap", "run 1", {{"trainer", {{"seed", 1}}}}, false, 30};
  }
  void TearDown() override { ::unsetenv("PYTHONPATH"); }

  // A package of that name whose functions write what they are given to `log`.
  void install(const std::string& name, const std::string& text) {
    std::ofstream(folder_.path() / (name + ".py"))
        << "import json, os, sys, time\nlog = open(" << folder_.path() / "log"
        << ", 'a')\n"
        << text;
  }
  void install_wandb(const std::string& in_log = "pass") {
    install("wandb", R"(
class Run:
    url, dir = None, "here"
    def __init__(self, id): self.id = id or "made"
    def log(self, metrics, step):
        )" + in_log + R"(
        print(step, json.dumps(metrics), file=log, flush=True)
    def finish(self): print("finish", file=log, flush=True)
def init(**options):
    print("init", json.dumps(options), file=log, flush=True)
    print("noise on stdout")
    return Run(options["id"])
)");
  }
  [[nodiscard]] std::string log() const {
    auto text = read_file(folder_.path() / "log");
    return text.ok() ? *text : "";
  }
  double seconds_of(const std::function<void()>& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  TemporaryFolder folder_;
  TrackerOptions options_;
};

TEST_F(TrackerTest, SendsEveryStepBeforeItEnds) {
  install_wandb();
  {
    Tracker tracker(options_);
    for (std::uint64_t step = 1; step <= 300; ++step)
      tracker.log(step, {{"train/loss", 0.5}, {"nan", std::nan("")}});
  }
  const std::string text = log();
  EXPECT_THAT(text, HasSubstr("\"project\": \"neap\", \"name\": \"run 1\""));
  EXPECT_THAT(text, HasSubstr("\"config\": {\"trainer\": {\"seed\": 1}}"));
  for (int step = 1; step <= 300; ++step)
    ASSERT_THAT(text, HasSubstr("\n" + std::to_string(step) + " {\"train/loss\": 0.5}\n"));
  EXPECT_THAT(text, testing::EndsWith("finish\n"));
}

TEST_F(TrackerTest, AResumedRunGoesOnWithTheSameRun) {
  install_wandb();
  { Tracker tracker(options_); }
  EXPECT_THAT(log(), HasSubstr("\"id\": null"));
  options_.resumed = true;
  { Tracker tracker(options_); }
  EXPECT_THAT(log(), HasSubstr("\"id\": \"made\""));
}

TEST_F(TrackerTest, ItsAbsenceAndDeathStopNothing) {
  const auto train = [&] {
    Tracker tracker(options_);
    for (std::uint64_t step = 1; step <= 20; ++step) tracker.log(step, {{"train/loss", 0.5}});
  };
  testing::internal::CaptureStderr();
  options_.kind = "mlflow";  // no such package
  install("mlflow", "raise ImportError('No module named mlflow')\n");
  EXPECT_LT(seconds_of(train), 60);
  const std::string missing = testing::internal::GetCapturedStderr();
  EXPECT_THAT(missing, HasSubstr("mlflow gets no more metrics"));
  EXPECT_THAT(missing, HasSubstr("No module named mlflow"));

  options_.kind = "wandb";
  install_wandb("os._exit(3)");
  testing::internal::CaptureStderr();
  EXPECT_LT(seconds_of(train), 60);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("exit code 3"));
}

TEST_F(TrackerTest, WaitsForAProcessThatHangsOnlySoLong) {
  install_wandb("time.sleep(1000)");
  options_.finish_seconds = 0.5;
  testing::internal::CaptureStderr();
  const double seconds = seconds_of([&] {
    Tracker tracker(options_);
    const double logging = seconds_of([&] {
      for (std::uint64_t step = 1; step <= 2 * Tracker::kMostLines; ++step)
        tracker.log(step, {{"train/loss", 0.5}});
    });
    EXPECT_LT(logging, 20);
  });
  EXPECT_LT(seconds, 60);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("did not end within"));
}

TEST_F(TrackerTest, AProcessMayTakeItsTimeToEndBehindTheLastStep) {
  install_wandb(
      "import atexit, __main__; atexit.register(lambda: (__main__.out.close(), time.sleep(1)))");
  testing::internal::CaptureStderr();
  const double seconds = seconds_of([&] {
    Tracker tracker(options_);
    tracker.log(1, {{"train/loss", 0.5}});
  });
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::Not(HasSubstr("gets no more metrics")));
  EXPECT_GE(seconds, 1);
  EXPECT_THAT(log(), testing::EndsWith("finish\n"));
}

TEST_F(TrackerTest, MlflowGetsNamesThatItTakesAndNoStepTwice) {
  install("mlflow", R"(
from types import SimpleNamespace as S
def set_experiment(name): print("experiment", name, file=log, flush=True)
def start_run(run_id=None, run_name=None):
    print("start", run_id, run_name, file=log, flush=True)
    return S(info=S(run_id="r1"), data=S(metrics={"training/global_step": 2.0} if run_id else {}))
def log_params(params): print("params", params, file=log, flush=True)
def get_tracking_uri(): return "nowhere"
def log_metrics(metrics, step): print(step, metrics, file=log, flush=True)
def end_run(): print("end", file=log, flush=True)
)");
  options_.kind = "mlflow";
  {
    Tracker tracker(options_);
    tracker.log(1, {{"val-core/gsm8k/acc/mean@4", 0.5}});
  }
  EXPECT_EQ(log(),
            "experiment neap\nstart None run 1\nparams {'trainer.seed': '1'}\n"
            "1 {'val-core/gsm8k/acc/mean_at_4': 0.5}\nend\n");
  options_.resumed = true;
  {
    Tracker tracker(options_);
    for (std::uint64_t step = 1; step <= 3; ++step) tracker.log(step, {{"a", 1}});
  }
  EXPECT_THAT(log(), testing::EndsWith("start r1 None\n3 {'a': 1.0}\nend\n"));
}

}  // namespace
}  // namespace neap::report
