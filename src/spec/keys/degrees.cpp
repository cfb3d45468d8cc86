#include "spec/keys/degrees.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/format.h"

namespace neap::spec {
namespace {

using KeyKind = DegreeKey::Kind;

constexpr std::int64_t kZeroStages = 4;
constexpr std::string_view kChunksPath = "parallel.virtual_pipeline_model_parallel_size";
// Each doubling halves a stage's idle time. More chunks save little and multiply communication.
constexpr std::int64_t kChunks[] = {1, 2, 4};

// Words that a file uses for 0 and 1.
using Words = std::array<const char*, 2>;
std::optional<Words> words_of(KeyKind kind) {
  if (kind == KeyKind::kRing) return Words{"all_gather", "p2p"};
  if (kind == KeyKind::kSchedule) return Words{"1f1b", "zero_bubble"};
  return std::nullopt;
}

// The value without parallelism.
std::int64_t least_of(KeyKind kind) {
  return kind == KeyKind::kAxis || kind == KeyKind::kChunks ? 1 : 0;
}

// Whether it takes more memory than its default.
bool costs_memory(KeyKind kind) {
  return kind == KeyKind::kShards || kind == KeyKind::kChunks || kind == KeyKind::kSchedule;
}

std::int64_t size_along(const Degrees& degrees, std::string_view path) {
  for (std::size_t k = 0; k < kDegreeKeys.size(); ++k)
    if (kDegreeKeys[k].path == path) return degrees[k];
  return 1;
}

// ZeRO stages that one model can have; -1 if the job has no such model.
std::vector<std::int64_t> stages_of(const Job& job, const DegreeKey& key, const Degrees& chosen) {
  const ModelId main = job.main_model();
  const ModelId model = key.model == ModelId::kActor ? main : key.model;
  const std::vector<ModelId> all = job.models();
  if (std::find(all.begin(), all.end(), model) == all.end()) return {-1};
  const ModelPlacement own = job.own_placement(model);
  const auto size = [&](std::int64_t of_model, std::string_view path) {
    return of_model > 0 ? of_model : size_along(chosen, path);
  };
  const std::int64_t parts =
      size(own.tensor_model_parallel_size, "parallel.tensor_model_parallel_size") *
      size(own.pipeline_model_parallel_size, "parallel.pipeline_model_parallel_size");
  if (job.ranks() <= parts) return {0};
  // For a model that is not trained, only stage 3 shards anything.
  if (model != main && model != ModelId::kCritic) return {0, 3};
  return {0, 1, 2, 3};
}

// Possible values of an open key, given the values of the keys before it.
std::vector<std::int64_t> choices(const Job& job, const DegreeKey& key, const Degrees& chosen) {
  std::vector<std::int64_t> out;
  const std::int64_t left = data_ranks(job, chosen);
  const std::int64_t context = size_along(chosen, "parallel.context_parallel_size");
  const std::int64_t copies = left * context;
  const bool staged =
      size_along(chosen, "parallel.pipeline_model_parallel_size") > 1 || job.has_stages();
  const auto either = [](bool open) {
    return open ? std::vector<std::int64_t>{0, 1} : std::vector<std::int64_t>{0};
  };
  switch (key.kind) {
    case KeyKind::kAxis:
      for (std::int64_t n = 1; n <= left; ++n)
        if (left % n == 0) out.push_back(n);
      return out;
    case KeyKind::kRows:
      return either(size_along(chosen, "parallel.tensor_model_parallel_size") > 1);
    case KeyKind::kRing:
      return either(context > 1);
    case KeyKind::kZeroStage:
      for (std::int64_t stage = 0; stage < (copies > 1 ? kZeroStages : 1); ++stage)
        out.push_back(stage);
      return out;
    case KeyKind::kShards:
      out.push_back(0);
      for (std::int64_t n = 2; n < copies && size_along(chosen, "parallel.zero_stage") > 0; ++n)
        if (copies % n == 0) out.push_back(n);
      return out;
    case KeyKind::kChunks:
      if (!staged || job.parallel.zero_bubble()) return {1};
      return {std::begin(kChunks), std::end(kChunks)};
    case KeyKind::kSchedule:
      return either(staged && size_along(chosen, kChunksPath) == 1);
    case KeyKind::kModelZeroStage:
      return stages_of(job, key, chosen);
  }
  return out;
}

}  // namespace

void open_degrees(OpenDegrees open, const ConfigTable& table, ParallelConfig& parallel) {
  AutomaticDegrees& automatic = parallel.automatic;
  if (open == OpenDegrees::kNone) automatic = {};
  const auto is_set = [&](const DegreeKey& key) { return table.find(key.path)->is_set; };
  if (open == OpenDegrees::kUnset)
    for (const DegreeKey& key : kDegreeKeys)
      if (!is_set(key) && !costs_memory(key.kind) && key.kind != KeyKind::kModelZeroStage)
        automatic.*key.automatic = true;
  for (const DegreeKey& key : kDegreeKeys)
    if (key.kind == KeyKind::kRows && !is_set(key)) automatic.*key.automatic = automatic.tensor;
}

std::vector<Degrees> possible_degrees(const Job& job) {
  // Keys that are not open come first, because open keys must be compatible with them.
  Degrees fixed{};
  for (std::size_t k = 0; k < kDegreeKeys.size(); ++k) {
    const DegreeKey& key = kDegreeKeys[k];
    const bool open = job.parallel.automatic.*key.automatic;
    if (key.kind == KeyKind::kModelZeroStage) continue;
    fixed[k] = open ? least_of(key.kind) : key.value(job.parallel);
  }
  std::vector<Degrees> all = {fixed};
  for (std::size_t k = 0; k < kDegreeKeys.size(); ++k) {
    const DegreeKey& key = kDegreeKeys[k];
    if (!(job.parallel.automatic.*key.automatic)) continue;
    std::vector<Degrees> wider;
    for (Degrees degrees : all) {
      for (const std::int64_t value : choices(job, key, degrees)) {
        degrees[k] = value;
        wider.push_back(degrees);
        degrees[k] = fixed[k];
      }
    }
    all = std::move(wider);
  }
  return all;
}

std::vector<std::string> assignments(const Job& job, const Degrees& degrees) {
  std::vector<std::string> out;
  for (std::size_t k = 0; k < kDegreeKeys.size(); ++k) {
    const DegreeKey& key = kDegreeKeys[k];
    if (!(job.parallel.automatic.*key.automatic)) continue;
    std::string value = format("{}", degrees[k]);
    if (key.kind == KeyKind::kRows) value = degrees[k] != 0 ? "true" : "false";
    if (const std::optional<Words> words = words_of(key.kind))
      value = words->at(static_cast<std::size_t>(degrees[k]));
    out.push_back(format("{}={}", key.path, value));
  }
  return out;
}

std::optional<std::int64_t> degree_of(const DegreeKey& key, const Json& value) {
  if (const std::optional<Words> words = words_of(key.kind)) {
    const auto found = std::find(words->begin(), words->end(), value);
    return found == words->end() ? std::nullopt : std::optional(found - words->begin());
  }
  if (value.is_boolean()) return std::int64_t{value.get<bool>()};
  if (value.is_number_integer()) return value.get<std::int64_t>();
  return std::nullopt;
}

std::int64_t data_ranks(const Job& job, const Degrees& degrees) {
  std::int64_t divided = 1;
  for (std::size_t k = 0; k < kDegreeKeys.size(); ++k)
    if (kDegreeKeys[k].kind == KeyKind::kAxis) divided *= degrees[k];
  return std::max<std::int64_t>(1, job.ranks() / divided);
}

}  // namespace neap::spec
