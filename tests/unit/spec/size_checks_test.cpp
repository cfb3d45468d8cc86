// Every number and every size of a configuration with values that no job can have.
#include "spec/keys/size_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "spec/types/task.h"
#include "unit/spec/job_file.h"

namespace neap::spec {
namespace {

const std::vector<std::string> kNumbers = {"nan",
                                           "inf",
                                           "-inf",
                                           "0",
                                           "-1",
                                           "2147483648",
                                           "4294967296",
                                           "4611686018427387904",
                                           "9223372036854775807",
                                           "1e308"};
const std::vector<std::string> kSizes = {"nan",
                                         "nan B",
                                         "inf GiB",
                                         "-1 GiB",
                                         "0 B",
                                         "1 B",
                                         "2147483648 B",
                                         "1e308 TiB",
                                         "-inf B",
                                         "4611686018427387904 B",
                                         "9223372036854775807 B",
                                         "8388607 TiB"};

bool is_number(const ConfigTable::Key& key) {
  return key.type.starts_with("integer") || key.type == "number" || key.type == "list of numbers";
}

bool all_finite(const Json& value) {
  if (value.is_array())
    return std::all_of(value.begin(), value.end(),
                       [](const Json& item) { return all_finite(item); });
  return !value.is_number() || std::isfinite(value.get<double>());
}

class Sizes : public JobFile {
 protected:
  static std::vector<std::string> paths_of(bool (*wanted)(const ConfigTable::Key&)) {
    Job job;
    const ConfigTable table = job.bind();
    std::vector<std::string> out;
    for (const ConfigTable::Key& key : table.keys())
      if (wanted(key)) out.push_back(key.path);
    return out;
  }
  // An error names the key; else every number is finite.
  void expect_error_or_job(const std::string& text, const std::string& path,
                           const std::string& value) {
    const std::string message = error(text, {path + "=" + value});
    if (message != "ok") {
      const auto dot = path.rfind('.');
      EXPECT_TRUE(has(message, path.substr(dot + 1))) << path << "=" << value << ": " << message;
      EXPECT_FALSE(has(message, "null")) << message;
      return;
    }
    for (const auto& [key, held] : job_.bind().values())
      EXPECT_TRUE(all_finite(held)) << path << "=" << value << " makes " << key << " " << held;
  }
};

std::string task_text(Task task) {
  return "task = \"" + std::string(to_string(task)) +
         "\"\nactor_rollout_ref.model.path = \"a\"\n[[reward.functions]]\nkind = \"numeric\"\n";
}

TEST_F(Sizes, EveryNumberIsRefusedByNameOrLeavesAJob) {
  for (const std::string& task : task_names()) {
    const std::string text = task_text(*parse_task(task));
    for (const std::string& path : paths_of(is_number)) {
      for (const std::string& value : kNumbers) {
        expect_error_or_job(text, path, value);
        if (path.ends_with("layout") || path.ends_with("weights"))
          expect_error_or_job(text, path, "[1," + value + "]");
      }
    }
  }
}

TEST_F(Sizes, NoNumberIsNanOrInfinite) {
  const std::string text = task_text(Task::kPpo);
  std::vector<std::string> paths = paths_of(is_number);
  ASSERT_GT(paths.size(), 76u);
  for (const char* key : {"weight", "tolerance", "correct_score", "wrong_score", "penalty_factor",
                          "timeout", "default_score", "max_length", "buffer_length"})
    paths.push_back(std::string("reward.functions.0.") + key);
  for (const std::string& path : paths) {
    for (const char* value : {"nan", "inf", "-inf", "[1.0,nan]"}) {
      const std::string message = error(text, {path + "=" + value});
      EXPECT_TRUE(has(message, ": " + path + " ") || has(message, path + " takes"))
          << path << "=" << value << ": " << message;
    }
  }
}

TEST_F(Sizes, EverySizeIsRefusedByNameOrLeavesAJob) {
  const auto is_size = [](const ConfigTable::Key& key) { return key.type == "size"; };
  for (const std::string& path : paths_of(is_size))
    for (const std::string& value : kSizes)
      expect_error_or_job(task_text(Task::kGrpo), path, value);
}

TEST_F(Sizes, PairsWhoseProductIsTooLargeAreRefusedByName) {
  const auto is_bounded = [](const ConfigTable::Key& key) {
    return key.type.starts_with("integer") && key.maximum && *key.maximum < double{kMostInteger};
  };
  // The most that each key alone may be.
  std::vector<std::string> most;
  Job job;
  const ConfigTable table = job.bind();
  const std::vector<std::string> paths = paths_of(is_bounded);
  ASSERT_GT(paths.size(), 30u);
  most.reserve(paths.size());
  for (const std::string& path : paths)
    most.push_back(path + "=" + bound_text(*table.find(path)->maximum));
  const auto names_a_key = [&](const std::string& message) {
    return std::any_of(table.keys().begin(), table.keys().end(),
                       [&](const ConfigTable::Key& key) { return has(message, key.path); });
  };
  for (const Task task : {Task::kGrpo, Task::kDpo}) {
    for (const char* packs : {"true", "false"}) {
      const std::string how = task == Task::kDpo ? "data" : "actor_rollout_ref.actor";
      for (std::size_t i = 0; i < most.size(); ++i) {
        for (std::size_t j = i + 1; j < most.size(); ++j) {
          const std::string message =
              error(task_text(task), {how + ".use_dynamic_bsz=" + packs, most[i], most[j]});
          if (message == "ok") {
            EXPECT_LE(job_.sequences_per_step() / job_.ranks(), kMostSequences)
                << most[i] << " " << most[j];
            EXPECT_LE(job_.ranks(), kMostRanks);
          } else {
            EXPECT_TRUE(names_a_key(message)) << most[i] << " " << most[j] << ": " << message;
          }
        }
      }
    }
  }
}

TEST_F(Sizes, ProductsAreRefusedWithTheirKeys) {
  const std::string grpo = task_text(Task::kGrpo);
  const auto expect = [&](const std::vector<std::string>& keys, const std::string& part) {
    const std::string message = error(grpo, keys);
    EXPECT_TRUE(has(message, part)) << message;
  };
  expect({"data.train_batch_size=4611686018427387904", "actor_rollout_ref.rollout.n=4"},
         "data.train_batch_size is 4611686018427387904 rows; the most is 16777216");
  expect({"data.train_batch_size=65536", "actor_rollout_ref.rollout.n=8"},
         "data.train_batch_size 65536 x actor_rollout_ref.rollout.n 8 are 524288 sequences of a "
         "step for each of 1 ranks that share them; the most is 262144");
  EXPECT_EQ(error(grpo, {"data.train_batch_size=65536", "actor_rollout_ref.rollout.n=8",
                         "trainer.n_gpus_per_node=2"}),
            "ok");
  expect({"trainer.nnodes=1024", "trainer.n_gpus_per_node=1024"},
         "trainer.nnodes 1024 x trainer.n_gpus_per_node 1024 are 1048576 ranks; the most is 65536");
  expect({"data.train_batch_size=32768", "actor_rollout_ref.rollout.batch_size=0",
          "data.max_response_length=65536"},
         "tokens of the KV cache; the most is 1073741824");
  expect({kPadded, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=65536"},
         "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu: 65536 sequences x ");
  expect({"data.max_prompt_length=4000000", "actor_rollout_ref.rollout.max_num_batched_tokens=1"},
         "actor_rollout_ref.rollout.max_num_batched_tokens 1 prefills ");
  expect({"data.max_prompt_length=100", "data.max_response_length=100",
          "actor_rollout_ref.rollout.max_total_tokens=255"},
         "actor_rollout_ref.rollout.max_total_tokens 255 holds 192 tokens in whole pages of 64, "
         "less than one sequence of 200 tokens (data.max_prompt_length 100 + "
         "data.max_response_length 100); set at least 256");
}

}  // namespace
}  // namespace neap::spec
