// Who holds memory at the peak, and how the text names them.
#include "replay/blame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "replay/stack_text.h"
#include "replay/summary.h"
#include "unit/replay/script.h"

namespace neap::replay {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

struct RawFrame {
  const char* function;
  const char* file;
  std::uint32_t line;
};

std::uint32_t add_stack(trace::Recording& recording, std::initializer_list<RawFrame> frames) {
  std::vector<std::uint32_t> ids;
  for (const RawFrame& frame : frames)
    ids.push_back(recording.stacks.add_frame(
        {recording.names.intern(frame.function), recording.names.intern(frame.file), frame.line}));
  return recording.stacks.add_stack(ids);
}

// As torch 2.11 records them with stacks="all".
constexpr RawFrame kUnwind{"torch::unwind::unwind()", "??", 0};
constexpr RawFrame kMalloc{"c10::cuda::CUDACachingAllocator::Native::malloc(void**, unsigned long)",
                           "/pytorch/c10/cuda/CUDACachingAllocator.cpp", 1200};
constexpr RawFrame kEmpty{"at::detail::empty_generic(c10::ArrayRef<long>)",
                          "/pytorch/aten/src/ATen/EmptyTensor.cpp", 180};
constexpr RawFrame kMatmul{"at::native::matmul(at::Tensor const&, at::Tensor const&)",
                           "/pytorch/aten/src/ATen/native/LinearAlgebra.cpp", 90};
constexpr RawFrame kModule{"_call_impl",
                           "/env/lib/python3.12/site-packages/torch/nn/modules/module.py", 1775};
constexpr RawFrame kLibrary{"inner", "/usr/lib/python3.12/contextlib.py", 81};
constexpr RawFrame kModel{"forward", "/env/lib/python3.12/site-packages/models/opt.py", 60};
constexpr RawFrame kTrain{"train_step", "/home/me/train.py", 41};

TEST(StackText, BeginsWithTheInnermostFrameOfTheUsersPython) {
  trace::Recording r;
  EXPECT_EQ(stack_text(r, add_stack(r, {kUnwind, kMalloc, kEmpty, kMatmul, kModule, kLibrary,
                                        kModel, kModule, kTrain})),
            "forward (opt.py:60) < train_step (train.py:41)");
  EXPECT_EQ(stack_text(r, add_stack(r, {kUnwind, kMalloc, kModule, kLibrary})),
            "_call_impl (module.py:1775) < inner (contextlib.py:81)");
  EXPECT_THAT(stack_text(r, add_stack(r, {kUnwind, kMalloc, kEmpty, kMatmul})),
              StartsWith("at::native::matmul("));
  EXPECT_EQ(stack_text(r, 0), "");
}

/// A block of 512 bytes from deep in long C++ names, in a segment of 2 MiB.
TEST(Blame, LinesHaveAtMost120Columns) {
  Script script;
  const std::string wide(100, 'w');
  script.recording.settings.conf =
      "max_split_size_mb:128,roundup_power2_divisions:[1:4,2:8,4:4,8:8,16:4,32:8,64:4,128:8,256:4]";
  auto& divisions = script.recording.settings.roundup_power2_divisions;
  for (std::size_t i = 0; i < divisions.size(); ++i) divisions[i] = i % 2 == 0 ? 4 : 8;
  script.recording.settings.max_split_size = 128 << 20;
  script.add(EventKind::kSegmentAlloc, kBase, 2 * kMiB).add(EventKind::kAlloc, kBase, 512);
  script.device().events.back().name =
      add_stack(script.recording, {kUnwind,
                                   kMalloc,
                                   {wide.c_str(), "/home/me/a.py", 1},
                                   {wide.c_str(), "/home/me/b.py", 2},
                                   {wide.c_str(), "/home/me/c.py", 3}});
  script.segment(kBase, 2 * kMiB,
                 {{kBase, 512, 512, 0, kLive}, {kBase + 512, 2 * kMiB - 512, 0, 0, kFree}});
  const Workload workload = *prepare(script.recording, script.device());
  Summary summary;
  summary.workload = &workload;
  summary.fidelity = *check_fidelity(workload);
  summary.advice = *advise(workload, {});
  summary.blame = *blame(workload, 1, kNoLimit);
  auto scenario = *Scenario::make(script.recording.settings.conf, "none", 0, workload.version);
  auto outcome = *run_scenario(workload, scenario, kNoLimit);
  summary.what_if.push_back({std::move(scenario), std::move(outcome)});
  const std::string all = to_text(summary);
  for (std::string_view text = all; !text.empty();) {
    const std::size_t end = text.find('\n');
    EXPECT_LE(columns_of(text.substr(0, end)), 120u) << text.substr(0, end);
    text.remove_prefix(end + 1);
  }
  EXPECT_THAT(all, HasSubstr("(a.py:1)"));
  EXPECT_THAT(all, HasSubstr("(c.py:3)"));
}

}  // namespace
}  // namespace neap::replay
