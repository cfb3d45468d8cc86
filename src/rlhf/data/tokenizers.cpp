#include "rlhf/data/tokenizers.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "base/status.h"
#include "spec/model/layout.h"

namespace neap::rlhf {
namespace {

namespace fs = std::filesystem;

struct TokenizerReader {
  spec::ModelId model = spec::ModelId::kActor;
  const char* key;  // the key of its path
  std::string path, tokenizer_path;
};

std::vector<TokenizerReader> readers(const spec::Job& job) {
  std::vector<TokenizerReader> out = {
      {job.main_model(), "actor_rollout_ref.model", job.actor_model.path, {}}};
  if (job.generates() && job.has_reward_model()) {
    out.push_back({spec::ModelId::kReward, "reward_model.model", job.reward_model.path,
                   job.reward_model.tokenizer_path});
  }
  if (job.has_critic()) {
    // A critic that starts as the reward model also has that model's tokenizer.
    const bool own = !job.critic.model.path.empty() || !job.critic.model.tokenizer_path.empty();
    out.push_back({spec::ModelId::kCritic, "critic.model", job.critic_path(),
                   own ? job.critic.model.tokenizer_path : job.reward_model.tokenizer_path});
  }
  if (job.uses_reference() && !job.reference_is_actor_base() && !job.reads_experience()) {
    const bool own =
        !job.reference_model.path.empty() || !job.reference_model.tokenizer_path.empty();
    out.push_back({spec::ModelId::kReference, "actor_rollout_ref.ref.model", job.reference_path(),
                   own ? job.reference_model.tokenizer_path : job.actor_model.tokenizer_path});
  }
  return out;
}

bool has_tokenizer(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "tokenizer.json", ignored) ||
         fs::exists(folder / "vocab.json", ignored);
}

}  // namespace

void check_tokenizers(const spec::Job& job, const text::Tokenizer& actor) {
  for (const TokenizerReader& reader : readers(job)) {
    const spec::ModelFiles files = value_or_throw(job.model_files(reader.model, reader.path));
    const fs::path& folder = files.base;
    const spec::Architecture shape = value_or_throw(job.configs.architecture(folder));
    if (shape.vocab_size < actor.vocab_size()) {
      throw Error(
          ErrorCode::kInvalidArgument,
          format("The tokenizer has {} tokens; the vocabulary of the {} model in {} has {}",
                 actor.vocab_size(), to_string(reader.model), folder.string(), shape.vocab_size));
    }
    if (reader.model == job.main_model()) continue;
    const bool named = !reader.tokenizer_path.empty();
    const fs::path from = named ? job.resolve(reader.tokenizer_path) : files.tokenizer();
    if (!named && !has_tokenizer(from)) continue;
    const auto difference = actor.difference(text::Tokenizer::from_folder(from));
    if (!difference) continue;
    throw Error(ErrorCode::kUnsupported,
                format("The tokenizer of the {} model in {} gives other ids than the actor's: {}. "
                       "Text is not translated between tokenizers; take a {} model with the "
                       "actor's tokenizer, or set {}.tokenizer_path if the files are wrong",
                       to_string(reader.model), from.string(), *difference, to_string(reader.model),
                       reader.key));
  }
}

}  // namespace neap::rlhf
