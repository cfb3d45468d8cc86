#include "bridge/step_graphs.h"

#include <exception>
#include <map>
#include <optional>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "base/status.h"
#include "bridge/streams.h"
#include "device/cuda/graph.h"
#include "step/generation/decode_graphs.h"

namespace neap::bridge {
namespace {

namespace cuda = device::cuda;

struct Step {
  std::optional<cuda::ExecutableGraph> graph;  // from the second time on
  std::uint64_t last_use = 0;
};

class StepGraphsImpl final : public StepGraphs {
 public:
  explicit StepGraphsImpl(at::Tensor scratch)
      : driver_(*value_or_throw(cuda::load_driver())), scratch_(std::move(scratch)) {}
  StepGraphsImpl(const StepGraphsImpl&) = delete;
  StepGraphsImpl& operator=(const StepGraphsImpl&) = delete;
  // The driver may still run the last graph.
  ~StepGraphsImpl() override {
    if (graphs() > 0) (void)driver_.stream_synchronize(stream());
  }

  void run(const step::GraphKey& key, const std::function<void()>& body) override {
    const auto [place, first] = steps_.try_emplace(key);
    Step& step = place->second;
    step.last_use = ++uses_;
    if (!first && !step.graph && captures_) {
      drop_one();
      step.graph = capture(body);
    }
    if (step.graph) return throw_if_error(step.graph->launch(stream()));
    run_in_scratch(body);
  }

  [[nodiscard]] std::size_t graphs() const override {
    std::size_t n = 0;
    for (const auto& [key, step] : steps_) n += step.graph ? std::size_t{1} : 0;
    return n;
  }
  [[nodiscard]] std::size_t nodes() const override {
    std::size_t n = 0;
    for (const auto& [key, step] : steps_) n += step.graph ? step.graph->nodes() : 0;
    return n;
  }
  [[nodiscard]] std::uint64_t extent() const override { return scratch_.extent(); }

 private:
  [[nodiscard]] cuda::Stream stream() const {
    return native_handle(current_stream(scratch_.device()));
  }
  void run_in_scratch(const std::function<void()>& body) {
    const CudaScratch::Scope scope(scratch_);
    body();
    if (!scratch_.idle())
      throw Error(ErrorCode::kInternal, "A tensor of a decoding step outlives the step");
  }
  [[nodiscard]] std::optional<cuda::ExecutableGraph> capture(const std::function<void()>& body) {
    Result<cuda::ExecutableGraph> made =
        cuda::ExecutableGraph::capture(driver_, stream(), [&]() -> Status {
          try {
            run_in_scratch(body);
          } catch (const Error& e) {
            return e.status();
          } catch (const std::exception& e) {
            return {ErrorCode::kInternal, e.what()};
          }
          return {};
        });
    if (made.ok()) return std::move(made).value();
    captures_ = false;
    log::warn(
        format("Decoding runs without CUDA graphs, which is slower: {}", made.status().message()));
    return std::nullopt;
  }

  /// Drops the least recently used graph if there are as many as a plan counts.
  void drop_one() {
    if (graphs() < step::kMostGraphs) return;
    (void)driver_.stream_synchronize(stream());
    Step* oldest = nullptr;
    for (auto& [key, step] : steps_)
      if (step.graph && (oldest == nullptr || step.last_use < oldest->last_use)) oldest = &step;
    oldest->graph.reset();
  }

  const cuda::Driver& driver_;
  CudaScratch scratch_;
  std::map<step::GraphKey, Step> steps_;
  std::uint64_t uses_ = 0;
  bool captures_ = true;
};

}  // namespace

std::unique_ptr<StepGraphs> StepGraphs::make(at::Tensor scratch) {
  return std::make_unique<StepGraphsImpl>(std::move(scratch));
}

}  // namespace neap::bridge
