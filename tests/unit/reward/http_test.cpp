#include "reward/http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/child_process.h"
#include "base/format.h"
#include "base/utf8.h"
#include "reward/curl_api.h"
#include "reward/service.h"

namespace neap::reward {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Prints its port, then does what each path says.
constexpr const char* kServer = R"(
import http.server, json, socketserver, sys, time
failures = {"left": 1}
counts = {}
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *words): pass
    def answer(self, text, status=200, length=None):
        self.send_response(status)
        self.send_header("Content-Length", str(length or len(text)))
        self.end_headers()
        self.wfile.write(text)
    def do_POST(self):
        items = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["items"]
        good = json.dumps({"scores": [float(i["response"]) for i in items]}).encode()
        if self.path == "/slow_first" and items[0]["response"] == "0": time.sleep(0.4)
        if self.path == "/hang": time.sleep(30)
        counts[self.path] = counts.get(self.path, 0) + 1
        if self.path == "/count_requests": return self.answer(json.dumps({"scores": [float(counts["/wrong"])] * len(items)}).encode())
        if self.path == "/wrong": return self.answer(b"no such model", 404)
        if self.path == "/accents": return self.answer(("not" + "\u00e9" * 80).encode(), 404)
        if self.path == "/created": return self.answer(good, 201)
        if self.path == "/busy_first":
            if items[0]["response"] != "0":
                counts["others"] = counts.get("others", 0) + 1
            elif "busy" not in counts:
                counts["busy"] = 1
                return self.answer(b"later", 503)
            else: counts["before"] = counts.get("others", 0)
        if self.path == "/before": return self.answer(json.dumps({"scores": [float(counts["before"])]}).encode())
        if self.path == "/error": return self.answer(b"no model here", 503)
        if self.path == "/redirect": return self.answer(b"", 302)
        if self.path == "/nonsense": return self.answer(b"<html>")
        if self.path == "/count": return self.answer(b"[1]")
        if self.path == "/secret" and self.headers["Authorization"] != "Bearer a$b": return self.answer(b"who", 401)
        if self.path == "/drop": return self.connection.shutdown(2)
        if self.path == "/once" and failures["left"]:
            failures["left"] -= 1
            return self.answer(b"busy", 429)
        if self.path == "/trickle":
            self.send_response(200); self.send_header("Content-Length", "1000"); self.end_headers()
            for _ in range(200): self.wfile.write(b" "); self.wfile.flush(); time.sleep(0.05)
            return
        if self.path == "/endless":
            self.send_response(200); self.send_header("Connection", "close"); self.end_headers()
            while True: self.wfile.write(b"x" * (1 << 20))
        self.answer(good)
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    def handle_error(self, *words): pass
server = Server(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
)";

class HttpReward : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::unsetenv("http_proxy");
    ::unsetenv("HTTP_PROXY");
    const fs::path file = fs::temp_directory_path() / format("neap_http_server-{}.py", ::getpid());
    std::ofstream(file) << kServer;
    server_ = *ChildProcess::start({{"python3", file.string()}});
    std::string text;
    while (text.find('\n') == std::string::npos) {
      pollfd out{server_->out(), POLLIN, 0};
      ASSERT_EQ(::poll(&out, 1, 30000), 1);
      ASSERT_TRUE(server_->read(text).ok());
    }
    port_ = std::stoi(text);
  }
  static void TearDownTestSuite() {
    server_->kill();
    server_.reset();
  }
  void SetUp() override {
    if (!CurlApi::load().ok()) GTEST_SKIP() << CurlApi::load().status().message();
    config_.kind = spec::RewardKind::kHttp;
    config_.batch_size = 2;
    config_.timeout = 20;
  }
  Result<std::vector<Score>> score(const std::string& path, int port = port_) {
    config_.url = "http://127.0.0.1:" + std::to_string(port) + path;
    auto server = make_http(config_, {.stop = stop_});
    if (!server.ok()) return server.status();
    const auto function = make_service(config_, {.prompt_key = "prompt"}, std::move(*server));
    const std::vector<std::string> texts = {"0", "1", "2", "3", "4"};
    std::vector<Response> responses;
    responses.reserve(texts.size());
    for (const std::string& text : texts) responses.push_back({&row_, text, 1, false});
    const auto start = std::chrono::steady_clock::now();
    auto out = function->score(responses);
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return out;
  }
  std::vector<double> values(const std::string& path) {
    const auto scores = score(path);
    EXPECT_TRUE(scores.ok()) << scores.status().message();
    std::vector<double> out;
    if (scores.ok())
      for (const Score& each : *scores) out.push_back(each.value);
    return out;
  }
  void expect_failure(const std::string& path, const char* part) {
    config_.retries = 1;
    const auto scores = score(path);
    ASSERT_FALSE(scores.ok()) << path;
    EXPECT_THAT(scores.status().message(), HasSubstr(part));
    EXPECT_THAT(scores.status().message(), HasSubstr("(attempt 2 of 2)"));
    EXPECT_LT(seconds_, 2 * (config_.timeout + 5));
  }

  static std::unique_ptr<ChildProcess> server_;
  static int port_;
  spec::RewardFunctionConfig config_;
  Json row_ = Json::parse(R"({"prompt": "p"})");
  std::function<bool()> stop_;
  double seconds_ = 0;
};
std::unique_ptr<ChildProcess> HttpReward::server_;
int HttpReward::port_ = 0;

TEST_F(HttpReward, ScoresBatchesInOrder) {
  EXPECT_THAT(values("/good"), ElementsAre(0, 1, 2, 3, 4));
  config_.concurrency = 3;
  EXPECT_THAT(values("/slow_first"), ElementsAre(0, 1, 2, 3, 4));
}

TEST_F(HttpReward, TriesAgain) {
  EXPECT_THAT(values("/once"), ElementsAre(0, 1, 2, 3, 4));
}

TEST_F(HttpReward, ServersThatFailAreNamed) {
  expect_failure("/error", "/error answered with status 503: no model here");
  expect_failure("/nonsense", "answered with what is not JSON: <html>");
  expect_failure("/count", "gave 1 scores for 2 items");
  expect_failure("/drop", "failed: ");
}

TEST_F(HttpReward, RequestsThatAreWrongAreSentOnce) {
  config_.retries = 5;
  config_.batch_size = 5;
  EXPECT_THAT(score("/wrong").status().message(),
              HasSubstr("/wrong answered with status 404: no such model"));
  EXPECT_THAT(values("/count_requests"), ElementsAre(1, 1, 1, 1, 1));
  std::string long_answer = score("/accents").status().message();
  EXPECT_TRUE(is_utf8(long_answer)) << long_answer;
  EXPECT_TRUE(long_answer.ends_with("\xc3\xa9...")) << long_answer;
  EXPECT_THAT(score("/redirect").status().message(), HasSubstr("answered with status 302"));
}

TEST_F(HttpReward, AnyStatusOfSuccessCounts) {
  EXPECT_THAT(values("/created"), ElementsAre(0, 1, 2, 3, 4));
}

TEST_F(HttpReward, OthersGoOnWhileOneWaitsToBeSentAgain) {
  config_.concurrency = 2;
  config_.batch_size = 1;
  EXPECT_THAT(values("/busy_first"), ElementsAre(0, 1, 2, 3, 4));
  // Of the four others only those on their way were done when the pause was a sleep.
  EXPECT_EQ(values("/before")[0], 4);
}

TEST_F(HttpReward, WaitsNoLongerWhenTheRunIsStopped) {
  const auto start = std::chrono::steady_clock::now();
  stop_ = [start] {
    return std::chrono::steady_clock::now() - start > std::chrono::milliseconds(300);
  };
  EXPECT_EQ(score("/hang").status().code(), ErrorCode::kCancelled);
  EXPECT_LT(seconds_, 15);
}

TEST_F(HttpReward, ServersThatAreSlowCostBoundedTime) {
  config_.timeout = 0.4;
  expect_failure("/hang", "gave no whole answer in 0.4 s");
  expect_failure("/trickle", "gave no whole answer in 0.4 s");
}

TEST_F(HttpReward, AnswersWithoutEndAreStopped) {
  expect_failure("/endless", "answered with what is over the limit of 64 MiB");
}

TEST_F(HttpReward, AServerThatIsNotThereIsNamed) {
  config_.retries = 0;
  EXPECT_THAT(score("/", 1).status().message(), HasSubstr("http://127.0.0.1:1/ failed: "));
}

TEST_F(HttpReward, HeadersTakeSecretsFromTheEnvironment) {
  config_.headers = {"Authorization: Bearer $NEAP_TEST_TOKEN"};
  ::unsetenv("NEAP_TEST_TOKEN");
  EXPECT_THAT(score("/secret").status().message(),
              HasSubstr("environment variable \"NEAP_TEST_TOKEN\", which is not set"));
  ::setenv("NEAP_TEST_TOKEN", "a$b", 1);
  EXPECT_THAT(values("/secret"), ElementsAre(0, 1, 2, 3, 4));
  config_.headers = {"Authorization: Bearer a$$b"};
  EXPECT_THAT(values("/secret"), ElementsAre(0, 1, 2, 3, 4));
}

}  // namespace
}  // namespace neap::reward
