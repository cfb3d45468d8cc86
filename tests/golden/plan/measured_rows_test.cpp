// Planned seconds of streamed training beside what an H200 took for the same (bench/results).
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "plan/search/drafts.h"

namespace neap::plan {
namespace {

namespace fs = std::filesystem;
using spec::UpdateMode;

const fs::path kSource = NEAP_SOURCE_DIR;

// A run of tests/gpu/ceilings.py, and how its plan ran the model.
struct MeasuredRun {
  std::string name;
  Bytes capacity;
  bool tables = false;
  std::int64_t together = 1;
  UpdateMode update = UpdateMode::kStreamed;
};

std::vector<std::string> overrides_of(const MeasuredRun& run) {
  std::vector<std::string> out = {"data.micro_batch_size_per_gpu=1", "trainer.deterministic=true",
                                  "actor_rollout_ref.model.activation_checkpointing=auto",
                                  format("device.memory={}B", run.capacity.count())};
  const auto add = [&](std::vector<std::string> more) {
    out.insert(out.end(), more.begin(), more.end());
  };
  if (run.name == "lora") {
    add({"actor_rollout_ref.model.path=models/qwen7", "actor_rollout_ref.model.lora_rank=16",
         "data.train_batch_size=2", "data.max_response_length=1984"});
  } else {
    add({"actor_rollout_ref.model.path=models/llama6", "data.train_batch_size=8",
         "data.max_response_length=960"});
  }
  return out;
}

double planned_seconds(const MeasuredRun& run) {
  spec::Job job;
  const Status loaded =
      spec::Job::load(kSource / "tests/golden/plan/qwen15_sft.toml", overrides_of(run), job);
  EXPECT_TRUE(loaded.ok()) << loaded.message();
  Target target;
  target.cuda = true;
  target.capacity = run.capacity;
  Predictions predictions;
  Drafts drafts(job, target, value_or_throw(Drafts::read(job, target)), predictions);
  spec::StepModes modes;
  modes.of(spec::ModelId::kActor) = {
      .layers = spec::Home::kHost,
      .tables = run.tables ? spec::Home::kHost : spec::Home::kDevice,
      .update = run.update,
      .together = run.together,
  };
  MemoryPlan plan = value_or_throw(drafts.draft(modes));
  plan.capacity = run.capacity;
  EXPECT_TRUE(value_or_throw(drafts.solve(plan, std::numeric_limits<double>::infinity())));
  return plan.seconds();
}

TEST(MeasuredRows, StreamedStepsArePlannedWithinTenPercent) {
  const fs::path file = kSource / "bench/results/streamed-groups-h200.jsonl";
  std::map<std::pair<std::string, std::uint64_t>, double> measured;
  const std::string text = value_or_throw(read_file(file));
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const Json row = value_or_throw(parse_json(text.substr(at, end - at), file.string()));
    measured[{row.at("case").get<std::string>(), row.at("capacity").get<std::uint64_t>()}] =
        row.at("seconds_a_step").get<double>();
    at = end + 1;
  }
  const std::vector<MeasuredRun> runs = {
      {"lora", Bytes(8589934592), false, 2, UpdateMode::kJoined},
      {"lora", Bytes(2298478592), true, 1, UpdateMode::kSplit},
      {"full6b", Bytes(8589934592), true, 8},
      {"full6b", Bytes(5931794432), true, 4},
      {"full6b", Bytes(4563402752), true, 1},
  };
  for (const MeasuredRun& run : runs) {
    SCOPED_TRACE(format("{} under {}", run.name, run.capacity));
    const double took = measured.at({run.name, run.capacity.count()});
    EXPECT_NEAR(planned_seconds(run) / took, 1, 0.1);
  }
}

}  // namespace
}  // namespace neap::plan
