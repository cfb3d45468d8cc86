// Tables and sentences of the docs that are made from plans. NEAP_UPDATE_GOLDEN=1 writes them anew.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "base/format.h"
#include "golden/compare_file.h"
#include "golden/plan/jobs.h"
#include "plan/search/advice.h"
#include "spec/keys/config_docs.h"
#include "spec/keys/peer_keys.h"
#include "unit/plan/gpt_activations.h"

namespace neap::plan {
namespace {

using testing::compare_file;

// Gigabytes that the blocks keep for backward, counted.
double kept_gigabytes(const spec::Architecture& a, spec::CheckpointMode mode,
                      std::int64_t sequences, std::int64_t length) {
  return kept_a_block(a, mode, sequences, length) * static_cast<double>(a.num_hidden_layers) / 1e9;
}

// Korthikanti et al.'s formulas for all blocks, in gigabytes.
double formula_gigabytes(const spec::Architecture& a, spec::CheckpointMode mode, std::int64_t b,
                         std::int64_t s) {
  const auto tokens = static_cast<double>(b * s);
  const auto h = static_cast<double>(a.hidden_size);
  const double scores = 5 * static_cast<double>(a.num_attention_heads) * static_cast<double>(s);
  const double each = mode == spec::CheckpointMode::kFull        ? 2 * h
                      : mode == spec::CheckpointMode::kSelective ? 34 * h
                                                                 : 34 * h + scores;
  return tokens * each * static_cast<double>(a.num_hidden_layers) / 1e9;
}

// The second table's values of one mode: bytes of the temporaries and seconds of a step.
std::string planned_row(std::string_view word) {
  spec::Job job;
  (void)spec::Job::load(kFolder / "qwen15_sft.toml",
                        {format("actor_rollout_ref.model.activation_checkpointing={}", word)}, job);
  const Result<MemoryPlan> plan = make_plan(job, target_of(job));
  const PhasePlan& train = plan->phases.at(0);
  return format("| `{}` | {} | {:.3f} |\n", word, train.transient, train.seconds);
}

std::string activations_table() {
  std::string text = "| layers of, batch | value | formula | counted |\n|---|---|---|---|\n";
  const spec::Architecture gpt = gpt2(96, 12288, 96);
  const auto qwen = spec::Architecture::from_folder(kFolder / "models" / "qwen1.5");
  for (const auto& [word, mode] : kModes)
    text += format("| GPT-3 175B, 1 x 2048 | `{}` | {:.1f} GB | {:.1f} GB |\n", word,
                   formula_gigabytes(gpt, mode, 1, 2048), kept_gigabytes(gpt, mode, 1, 2048));
  for (const auto& [word, mode] : kModes)
    text += format("| Qwen2.5-1.5B, 8 x 2048 | `{}` |  | {:.1f} GB |\n", word,
                   kept_gigabytes(*qwen, mode, 8, 2048));

  text +=
      "\nPlans of SFT of Qwen2.5-1.5B, 8 x 2048, on an H200:\n\n| value | temporary | seconds of a "
      "step |\n|---|---|---|\n";
  for (const auto& [word, mode] : kModes) text += planned_row(word);
  return text;
}

// Compares what stands between <!-- name: ... --> and <!-- /name --> in docs/memory-model.md.
void compare_page(const std::string& name, const std::string& text) {
  const std::filesystem::path file =
      std::filesystem::path(NEAP_SOURCE_DIR) / "docs" / "memory-model.md";
  const Result<std::string> page = read_file(file);
  ASSERT_TRUE(page.ok());
  const std::size_t mark = page->find("<!-- " + name + ":");
  const std::size_t end = page->find("<!-- /" + name + " -->");
  ASSERT_NE(mark, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  const std::size_t begin = page->find('\n', mark) + 1;
  compare_file(file, page->substr(0, begin) + text + page->substr(end));
}

TEST(GoldenPlans, TheCommittedTableOfActivationsIsThePlans) {
  compare_page("activations", activations_table());
}

TEST(GoldenPlans, TheCommittedAlternativesAreThePlans) {
  spec::Job job;
  const std::string allow =
      "memory.allow=[\"recompute\",\"offload\",\"offload_optimizer\",\"bf16_states\"]";
  ASSERT_TRUE(
      spec::Job::load(kFolder / "qwen7b_ppo.toml", with_auto({allow, "device.memory=79GiB"}), job)
          .ok());
  const auto found = make_plan_with_outlook(job, target_of(job));
  ASSERT_TRUE(found.ok()) << found.status().message();
  compare_file(kFolder / "qwen7b_ppo.alternatives.txt", found->outlook.to_text(found->plan));
}

TEST(GoldenPlans, TheCommittedReferencePagesAreTheTable) {
  const std::filesystem::path docs = std::filesystem::path(NEAP_SOURCE_DIR) / "docs";
  for (const spec::ReferencePage& page : spec::configuration_reference())
    compare_file(docs / page.file, page.text);
  compare_file(docs / "verl-trl-keys.md", spec::peer_reference());
}

}  // namespace
}  // namespace neap::plan
