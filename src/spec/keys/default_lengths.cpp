#include "spec/keys/default_lengths.h"

#include <algorithm>
#include <limits>

#include "base/format.h"
#include "spec/recipe/recipe.h"

namespace neap::spec {
namespace {

// The smallest number of positions of the job's models.
std::int64_t fewest_positions(const Job& job) {
  std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
  for (const ModelSource& model : describe(job).models) {
    const auto files = job.model_files(model.id, model.path);
    if (!files.ok()) continue;
    if (const auto shape = job.configs.architecture(files->base); shape.ok())
      fewest = std::min(fewest, shape->longest_sequence());
  }
  return fewest;
}

}  // namespace

Result<std::vector<std::string>> adapt_lengths(const ConfigTable& table, const Job& job) {
  std::vector<std::string> adapted;
  // `neap eval` derives the lengths from the prompts.
  if (job.task == Task::kEval || job.actor_model.path.empty()) return adapted;
  const ConfigTable::Key* prompt = table.find("data.max_prompt_length");
  const ConfigTable::Key* response = table.find("data.max_response_length");
  if (prompt->is_set && response->is_set) return adapted;
  const std::int64_t positions = fewest_positions(job);
  if (job.max_sequence_length() <= positions) return adapted;
  const auto set = [&](const ConfigTable::Key* key, std::int64_t tokens) -> Status {
    if (key->is_set || tokens < 1) return {};
    NEAP_TRY(key->assign(Json(tokens)));
    adapted.push_back(format("{}={}", key->path, tokens));
    return {};
  };
  const bool one_is_set = prompt->is_set || response->is_set;
  const std::int64_t half = positions / 2;
  const std::int64_t of_prompt = one_is_set ? positions - job.data.max_response_length : half;
  const std::int64_t of_response =
      one_is_set ? positions - job.data.max_prompt_length : positions - half;
  NEAP_TRY(set(prompt, of_prompt));
  NEAP_TRY(set(response, of_response));
  return adapted;
}

std::string adapted_text(const Job& job) {
  std::string text;
  for (const std::string& assignment : job.adapted)
    text += (text.empty() ? "Not set, fitted to this job: " : " ") + assignment;
  return text;
}

}  // namespace neap::spec
