// A planned job on its device: the runtime, which the calling thread has entered, and the context
// of its trainers. Training and evaluation run in one.
//
// Threads   the one that made it.
// Failure   Error.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/status.h"
#include "bridge/runtime.h"
#include "rlhf/trainer/trainer.h"

namespace neap::rlhf {

/// The actor's tokenizer and what reads texts with it. The job must outlive it.
struct JobTexts {
  explicit JobTexts(const spec::Job& job) : context(open_texts(job, tokenizer)) {}
  JobTexts(const JobTexts&) = delete;
  JobTexts& operator=(const JobTexts&) = delete;

  std::optional<text::Tokenizer> tokenizer;
  TextContext context;
};

/// The inputs of a job, apart from weights. They must outlive the LiveJob.
struct LiveInputs {
  const TextContext& texts;
  const JobData& data;
  reward::RewardSet& rewards;
};

class LiveJob {
 public:
  /// Makes the runtime of the planned job; weights are loaded later. `recorder` may be null. All
  /// arguments must outlive it.
  LiveJob(const LiveInputs& inputs, const plan::DeviceChoice& device, const plan::MemoryPlan& plan,
          const parallel::JobGroups& groups, trace::EventSink* recorder = nullptr,
          std::int64_t total_steps = 0)
      : runtime_(bridge::Runtime::make(inputs.texts.job, device, plan, recorder)),
        entered_(runtime_->context()),
        context_{inputs.texts,         *runtime_, groups, inputs.data, inputs.rewards, total_steps,
                 device.target.folders} {}
  LiveJob(const LiveJob&) = delete;
  LiveJob& operator=(const LiveJob&) = delete;

  [[nodiscard]] bridge::Runtime& runtime() { return *runtime_; }
  [[nodiscard]] Context& context() { return context_; }

  /// Runs `work`. If libtorch runs out of memory in it, the error is the runtime's, which names
  /// need, free memory and holders.
  template <typename Work>
  decltype(auto) run(Work&& work) {
    try {
      return std::forward<Work>(work)();
    } catch (const c10::OutOfMemoryError&) {
      throw_if_error(runtime_->last_oom());
      throw;
    }
  }

 private:
  std::unique_ptr<bridge::Runtime> runtime_;
  bridge::DeviceContext::Entered entered_;
  Context context_;
};

}  // namespace neap::rlhf
