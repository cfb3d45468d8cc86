#include "reward/http.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <exception>

#include "base/read_limits.h"
#include "base/text.h"
#include "reward/curl_api.h"

namespace neap::reward {
namespace {

using Clock = RequestQueue::Clock;
// Pause before a request is sent again. It doubles each time, unless the server gives a time.
constexpr auto kFirstPause = std::chrono::milliseconds(500);
constexpr auto kLongestPause = std::chrono::seconds(60);

// Replaces $TOKEN in "Authorization: Bearer $TOKEN" by the variable's value.
Result<std::string> with_environment(const std::string& header) {
  std::string out;
  for (std::size_t at = 0; at < header.size();) {
    if (header[at] != '$') {
      out += header[at++];
      continue;
    }
    std::size_t end = at + 1;
    if (end < header.size() && header[end] == '$') {
      out += '$';
      at += 2;
      continue;
    }
    while (end < header.size() &&
           (std::isalnum(static_cast<unsigned char>(header[end])) != 0 || header[end] == '_'))
      ++end;
    const std::string name = header.substr(at + 1, end - at - 1);
    const char* value = name.empty() ? nullptr : std::getenv(name.c_str());
    if (value == nullptr)
      return Status(
          ErrorCode::kInvalidArgument,
          format("headers name the environment variable \"{}\", which is not set; a dollar "
                 "sign is written $$",
                 name));
    out += value;
    at = end;
  }
  return out;
}

// A request in flight.
struct Transfer {
  CURL* handle = nullptr;
  std::optional<std::size_t> request;
  std::string reply;
  std::array<char, CURL_ERROR_SIZE> error{};
  bool too_large = false, no_memory = false;
};

// C code calls it, so no exception may escape.
std::size_t keep(char* data, std::size_t size, std::size_t count, void* to) noexcept {
  auto& transfer = *static_cast<Transfer*>(to);
  if (Bytes(transfer.reply.size() + size * count) > read_limits::kReply.part) {
    transfer.too_large = true;
    return 0;  // ends the transfer
  }
  try {
    transfer.reply.append(data, size * count);
  } catch (const std::exception&) {
    transfer.no_memory = true;
    return 0;
  }
  return size * count;
}

class Http final : public Transport {
 public:
  Http(const spec::RewardFunctionConfig& config, const Setting& setting, const CurlApi& curl)
      : config_(config), stop_(setting.stop), curl_(curl) {}
  ~Http() override {
    for (Transfer& transfer : transfers_) {
      if (transfer.handle == nullptr) continue;
      leave(transfer);
      curl_.easy_cleanup(transfer.handle);
    }
    if (multi_ != nullptr) curl_.multi_cleanup(multi_);
    curl_.slist_free_all(headers_);
  }

  [[nodiscard]] Status open() {
    multi_ = curl_.multi_init();
    NEAP_TRY(add_header("Content-Type: application/json"));
    NEAP_TRY(add_header("Expect:"));  // do not ask the server before sending a large body
    for (const std::string& header : config_.headers) {
      NEAP_TRY_ASSIGN(const std::string text, with_environment(header));
      NEAP_TRY(add_header(text));
    }
    for (std::int64_t i = 0; i < config_.concurrency; ++i) {
      Transfer& transfer = transfers_.emplace_back();
      transfer.handle = curl_.easy_init();
      if (transfer.handle == nullptr || multi_ == nullptr)
        return {ErrorCode::kOutOfHostMemory, "No memory for an HTTP connection"};
    }
    return {};
  }

  [[nodiscard]] Status run(const std::vector<std::string>& requests, Replies& replies) override {
    RequestQueue queue(requests.size(), config_);
    Status status = run_all(requests, replies, queue);
    for (Transfer& transfer : transfers_) leave(transfer);
    return status;
  }

 private:
  [[nodiscard]] Status add_header(const std::string& text) {
    curl_slist* longer = curl_.slist_append(headers_, text.c_str());
    if (longer == nullptr) return {ErrorCode::kOutOfHostMemory, "No memory for an HTTP header"};
    headers_ = longer;
    return {};
  }

  [[nodiscard]] Status run_all(const std::vector<std::string>& requests, Replies& replies,
                               RequestQueue& queue) {
    while (!queue.finished()) {
      if (stop_ && stop_()) return {ErrorCode::kCancelled, "Interrupted"};
      for (Transfer& transfer : transfers_) {
        if (transfer.request) continue;
        const auto next = queue.next();
        if (!next) break;
        begin(transfer, *next, requests[*next]);
      }
      int running = 0;
      (void)curl_.multi_perform(multi_, &running);
      NEAP_TRY(collect(replies, queue));
      if (!queue.finished()) wait(queue);
    }
    return {};
  }

  // Waits until a transfer progresses, or a delayed request may be sent.
  void wait(const RequestQueue& queue) {
    auto until = Clock::now() + kStopPeriod;
    if (std::any_of(transfers_.begin(), transfers_.end(),
                    [](const Transfer& each) { return !each.request; }))
      until = std::min(until, queue.due());
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    const auto most = std::max(left, std::chrono::milliseconds(0));
    (void)curl_.multi_poll(multi_, nullptr, 0, static_cast<int>(most.count()), nullptr);
  }

  void begin(Transfer& transfer, std::size_t request, const std::string& body) {
    transfer.request = request;
    transfer.reply.clear();
    transfer.error.fill('\0');
    transfer.too_large = transfer.no_memory = false;
    CURL* h = transfer.handle;
    const auto set = [&](CURLoption option, auto value) {
      (void)curl_.easy_setopt(h, option, value);
    };
    set(CURLOPT_URL, config_.url.c_str());
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_TIMEOUT_MS, static_cast<long>(std::max(config_.timeout * 1000, 1.0)));
    set(CURLOPT_HTTPHEADER, headers_);
    set(CURLOPT_POST, 1L);
    set(CURLOPT_POSTFIELDS, body.data());  // the caller keeps it until run() returns
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    set(CURLOPT_WRITEFUNCTION, &keep);
    set(CURLOPT_WRITEDATA, static_cast<void*>(&transfer));
    set(CURLOPT_ERRORBUFFER, transfer.error.data());
    (void)curl_.multi_add_handle(multi_, h);
  }

  // Handles the transfers that have ended.
  [[nodiscard]] Status collect(Replies& replies, RequestQueue& queue) {
    int left = 0;
    while (const CURLMsg* message = curl_.multi_info_read(multi_, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      const auto at = std::find_if(transfers_.begin(), transfers_.end(), [&](const Transfer& t) {
        return t.handle == message->easy_handle;
      });
      Replies::Verdict verdict{outcome(*at, message->data.result)};
      if (verdict.status.ok()) verdict = replies.accept(*at->request, at->reply);
      const std::size_t request = *at->request;
      const Clock::duration pause = pause_after(*at, queue.failures_of(request));
      const long code = status_code(*at);
      leave(*at);
      if (!verdict.status.ok()) {
        const bool again =
            verdict.again && (code < 300 || code >= 500 || code == 408 || code == 429);
        const auto final = queue.failed(request, verdict.status, again, pause);
        if (!final) continue;
        NEAP_TRY(replies.give_up(
            request, {final->code(), format("the server {} {}", config_.url, final->message())}));
      }
      queue.done();
    }
    return {};
  }

  /// 0 without a response.
  [[nodiscard]] long status_code(const Transfer& transfer) const {
    long code = 0;
    (void)curl_.easy_getinfo(transfer.handle, CURLINFO_RESPONSE_CODE, &code);
    return code;
  }

  [[nodiscard]] Clock::duration pause_after(const Transfer& transfer,
                                            std::int64_t failures_before) const {
    curl_off_t seconds = 0;
    (void)curl_.easy_getinfo(transfer.handle, CURLINFO_RETRY_AFTER, &seconds);
    const auto doubled =
        kFirstPause * (std::int64_t{1} << std::min<std::int64_t>(failures_before, 7));
    const std::chrono::milliseconds wanted =
        seconds > 0 ? std::chrono::seconds(std::min<curl_off_t>(seconds, 3600)) : doubled;
    return std::min<Clock::duration>(wanted, kLongestPause);
  }

  [[nodiscard]] Status outcome(const Transfer& transfer, CURLcode result) const {
    if (transfer.too_large)
      return over_limit("answered with what", read_limits::kReply, Excess::kPart, 0,
                        ErrorCode::kIo);
    if (transfer.no_memory)
      return {ErrorCode::kOutOfHostMemory, "answered with more than memory holds"};
    if (result == CURLE_OPERATION_TIMEDOUT)
      return {ErrorCode::kTimeout, format("gave no whole answer in {} s", config_.timeout)};
    if (result != CURLE_OK)
      return {ErrorCode::kIo,
              format("failed: {}", transfer.error[0] != '\0' ? transfer.error.data()
                                                             : curl_.easy_strerror(result))};
    const long code = status_code(transfer);
    if (code >= 200 && code < 300) return {};
    return {ErrorCode::kIo,
            format("answered with status {}: {}", code, excerpt(transfer.reply, 120))};
  }

  void leave(Transfer& transfer) {
    if (transfer.request) (void)curl_.multi_remove_handle(multi_, transfer.handle);
    transfer.request.reset();
  }

  spec::RewardFunctionConfig config_;
  std::function<bool()> stop_;
  const CurlApi& curl_;
  CURLM* multi_ = nullptr;
  curl_slist* headers_ = nullptr;
  std::deque<Transfer> transfers_;
};

}  // namespace

Result<std::unique_ptr<Transport>> make_http(const spec::RewardFunctionConfig& config,
                                             const Setting& setting) {
  NEAP_TRY_ASSIGN(const CurlApi* curl, CurlApi::load());
  auto http = std::make_unique<Http>(config, setting, *curl);
  NEAP_TRY(http->open());
  return std::unique_ptr<Transport>(std::move(http));
}

}  // namespace neap::reward
