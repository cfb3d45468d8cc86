#include "rlhf/trainer/kept_steps.h"

#include <ATen/ATen.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "base/json.h"
#include "base/read_limits.h"
#include "weights/safetensors.h"
#include "weights/tensor_io.h"

namespace neap::rlhf {
namespace fs = std::filesystem;
namespace {

using spec::KeptField;

constexpr std::string_view kPrefix = "step_", kSuffix = ".safetensors";
constexpr const char* kFormat = "neap_experience";
constexpr const char* kVersion = "1";
constexpr const char* kMetrics = "metrics";
constexpr std::int64_t kMostSteps = 1'000'000'000'000;

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMostSteps)
    return std::nullopt;
  return value;
}

[[noreturn]] void fail_corrupt(std::string_view why) {
  throw Error(ErrorCode::kCorrupt,
              format("{}. Keep the experience again (trainer.experience = \"keep\")", why));
}
[[noreturn]] void fail_corrupt(const fs::path& file, std::string_view why) {
  fail_corrupt(format("{}: {}", file.string(), why));
}
// Says what to do if `read` finds a damaged file.
template <class Read>
auto read_whole(const Read& read) {
  try {
    return read();
  } catch (const Error& e) {
    if (e.status().code() != ErrorCode::kCorrupt) throw;
    fail_corrupt(e.status().message());
  }
}
[[noreturn]] void fail_other(const fs::path& file, std::string_view why) {
  throw Error(ErrorCode::kInvalidArgument, format("{} {}", file.string(), why));
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t size : shape) text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text;
}

std::string metadata_of(const weights::SafetensorsFile& file, const std::string& name) {
  const auto found = file.metadata().find(name);
  return found == file.metadata().end() ? std::string() : found->second;
}

std::int64_t number_of(const weights::SafetensorsFile& file, const std::string& name) {
  const auto value = whole_number(metadata_of(file, name));
  if (!value) fail_corrupt(file.path(), format("its metadata has no \"{}\"", name));
  return *value;
}

weights::SafetensorsFile open_step(const fs::path& path) {
  weights::SafetensorsFile file = read_whole([&] { return weights::SafetensorsFile::open(path); });
  if (metadata_of(file, kFormat) != kVersion)
    fail_other(path,
               "is not experience that this version keeps; name the output folder of a run "
               "with trainer.experience = \"keep\"");
  return file;
}

void check_origin(const weights::SafetensorsFile& file, const ExperienceOrigin& origin) {
  const std::string model = metadata_of(file, "model");
  if (model != origin.model)
    fail_other(file.path(),
               format("was kept with another model ({}) than actor_rollout_ref.model.path ({}); "
                      "set the path of that run",
                      model, origin.model));
  if (metadata_of(file, "tokenizer") != origin.tokenizer)
    fail_other(file.path(),
               "was kept with another tokenizer; set actor_rollout_ref.model.path and "
               "tokenizer_path as in that run");
}

// An empty tensor of the entry's type.
at::Tensor target_of(const weights::SafetensorsFile& file, const spec::KeptTensor& wanted) {
  const std::string name(to_string(wanted.field));
  const weights::TensorEntry* entry = file.find(name);
  if (entry == nullptr) {
    const bool of_critic =
        wanted.field == KeptField::kValues || wanted.field == KeptField::kReturns;
    fail_other(file.path(),
               format("has no {}: it was kept by a run {}", name,
                      of_critic ? "without a critic. Set task = \"grpo\" to train the actor alone, "
                                  "or keep the experience of a run with task = \"ppo\""
                                : "whose updates do not read them. Set the keys of "
                                  "actor_rollout_ref.actor and algorithm as in that run"));
  }
  if (entry->shape != wanted.shape)
    fail_other(file.path(), format("has {} of {}; this job has {}. Set data.train_batch_size, "
                                   "actor_rollout_ref.rollout.n, data.max_prompt_length and "
                                   "data.max_response_length as in the run that kept it",
                                   name, shape_text(entry->shape), shape_text(wanted.shape)));
  std::vector<at::ScalarType> types = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
  if (is_count(wanted.field)) types = {at::kLong};
  if (wanted.field == KeptField::kTokens) types = {at::kInt};
  for (const at::ScalarType type : types)
    if (entry->dtype == weights::dtype_name(type)) return at::empty(wanted.shape, at::dtype(type));
  fail_corrupt(file.path(), format("{} is {}", name, entry->dtype));
}

bool holds(const at::Tensor& t) {
  return t.all().item<bool>();
}

// Positions that are computed from these must be inside the batch.
void check_contents(const fs::path& file, const KeptStep& step, std::int64_t vocabulary) {
  const at::Tensor &tokens = step[KeptField::kTokens], &lengths = step[KeptField::kLengths];
  const at::Tensor &responses = step[KeptField::kResponseLengths], &mask = step[KeptField::kMask];
  if (!holds(tokens.ge(0)) || !holds(tokens.lt(vocabulary)))
    fail_corrupt(file, format("tokens are not in the vocabulary of {}", vocabulary));
  if (!holds(responses.ge(1)) || !holds(responses.le(mask.size(1))) ||
      !holds(responses.lt(lengths)) || !holds(lengths.le(tokens.size(1))))
    fail_corrupt(file, "lengths are not those of prompts and responses");
  const at::Tensor after = at::arange(mask.size(1), at::kLong).ge(responses.unsqueeze(-1));
  if (!holds(mask.eq(0).logical_or(mask.eq(1))) || mask.masked_select(after).any().item<bool>())
    fail_corrupt(file, "the mask is not one of responses");
}

Metrics metrics_of(const weights::SafetensorsFile& file) {
  const std::string text = metadata_of(file, kMetrics);
  constexpr const ReadLimits& kLimits = read_limits::kKeptMetrics;
  if (Bytes(text.size()) > kLimits.part)
    throw Error(over_limit(format("{}: its metadata", file.path().string()), kLimits, Excess::kPart,
                           0, ErrorCode::kCorrupt));
  const Result<Json> json = parse_json(text, kMetrics, kLimits);
  if (!json.ok() || !json->is_object()) fail_corrupt(file.path(), "its metrics are not JSON");
  Metrics out;
  for (const auto& [name, value] : json->items()) {
    if (!value.is_number()) fail_corrupt(file.path(), "a metric is not a number");
    out[name] = value.get<double>();
  }
  return out;
}

// JSON has only finite numbers.
std::string json_of(const Metrics& metrics) {
  Json out = Json::object();
  for (const auto& [name, value] : metrics)
    if (std::isfinite(value)) out[name] = value;
  return json_text(out);
}

}  // namespace

void write_kept_step(const fs::path& file, const spec::Job& job, const KeptStep& step,
                     const ExperienceOrigin& origin, const KeptSchedule& schedule) {
  weights::NamedTensors tensors;
  for (const spec::KeptTensor& kept : kept_tensors(job)) {
    const at::Tensor& tensor = step[kept.field];
    if (!tensor.defined() || tensor.sizes() != at::IntArrayRef(kept.shape))
      throw Error(ErrorCode::kInternal, format("experience to keep has no {} of {}",
                                               to_string(kept.field), shape_text(kept.shape)));
    tensors.emplace_back(to_string(kept.field), tensor.contiguous());
  }
  weights::save_tensors(file, tensors,
                        {{kFormat, kVersion},
                         {"tokenizer", origin.tokenizer},
                         {"model", origin.model},
                         {"total_steps", std::to_string(schedule.total_steps)},
                         {"steps_per_epoch", std::to_string(schedule.steps_per_epoch)},
                         {kMetrics, json_of(step.metrics)}});
}

KeptStep read_kept_step(const fs::path& path, const spec::Job& job,
                        const ExperienceOrigin& origin) {
  const weights::SafetensorsFile file = open_step(path);
  check_origin(file, origin);
  KeptStep out;
  weights::NamedTensors targets;
  for (const spec::KeptTensor& wanted : kept_tensors(job)) {
    out[wanted.field] = target_of(file, wanted);
    targets.emplace_back(to_string(wanted.field), out[wanted.field]);
  }
  read_whole([&] { weights::load_tensors(file, targets); });
  check_contents(path, out, origin.vocabulary);
  out.metrics = metrics_of(file);
  return out;
}

std::set<std::int64_t> KeptSteps::list(const fs::path& folder) {
  std::set<std::int64_t> out;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::string_view rest = name;
    if (!rest.starts_with(kPrefix) || !rest.ends_with(kSuffix)) continue;
    rest.remove_prefix(kPrefix.size());
    rest.remove_suffix(kSuffix.size());
    if (const auto step = whole_number(rest)) out.insert(*step);
  }
  return out;
}

KeptSteps::KeptSteps(const fs::path& folder) : folder_(folder / kExperienceFolder) {
  std::error_code ignored;
  if (!fs::is_directory(folder_, ignored)) folder_ = folder;
  steps_ = list(folder_);
  if (!steps_.empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              format("trainer.experience_dir: {} holds no experience; name the output folder of a "
                     "run with trainer.experience = \"keep\"",
                     folder.string()));
}

fs::path KeptSteps::file_of(const fs::path& folder, std::int64_t step) {
  return folder / format("{}{}{}", kPrefix, step, kSuffix);
}

KeptSchedule KeptSteps::schedule() const {
  const weights::SafetensorsFile first = open_step(file(*steps_.begin()));
  return {number_of(first, "total_steps"), number_of(first, "steps_per_epoch")};
}

void KeptSteps::expect(std::int64_t done, std::int64_t last) const {
  std::int64_t have = done;
  while (have < last && steps_.contains(have + 1)) ++have;
  if (have >= last) return;
  const std::string next =
      have > done
          ? format("Set trainer.total_training_steps = {} to train from the steps before it", have)
          : format(
                "To start at a later step, set trainer.resume_mode to the checkpoint "
                "before it");
  throw Error(ErrorCode::kInvalidArgument,
              format("{} holds {} steps, {} to {}, but not step {}. {}", folder_.string(),
                     steps_.size(), *steps_.begin(), *steps_.rbegin(), have + 1, next));
}

}  // namespace neap::rlhf
