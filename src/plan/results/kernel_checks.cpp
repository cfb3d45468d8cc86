#include "plan/results/kernel_checks.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/format.h"
#include "spec/model/layout.h"
#include "spec/recipe/recipe.h"
#include "step/model/paged_cache.h"
#include "step/operations/fp8.h"

namespace neap::plan {
namespace {

Status unsupported(const std::string& reason) {
  return {ErrorCode::kUnsupported, "device.linear_dtype is \"fp8\", but " + reason};
}

// Whether a rank's part of some matrix of a block is multiplied in fp8.
bool multiplies_in_fp8(const ModelRole& role) {
  const std::vector<spec::FlatUnit> units = spec::flat_layout(role.shape, role.head);
  return std::any_of(units.begin(), units.end(), [](const spec::FlatUnit& unit) {
    return unit.block >= 0 && std::any_of(unit.parameters.begin(), unit.parameters.end(),
                                          [](const spec::Parameter& p) {
                                            return p.part == spec::Part::kWeight &&
                                                   p.shape.size() == 2 &&
                                                   step::fits_fp8(p.shape[0], p.shape[1]);
                                          });
  });
}

}  // namespace

Status check_linear_dtype(const spec::Job& job, const Target& target, const JobModels& models) {
  if (!job.device.multiplies_in_fp8()) return {};
  const spec::Dtype dtype = compute_dtype(job, target);
  if (dtype != spec::Dtype::kBfloat16)
    return unsupported(
        format("the job computes in {}, whose digits fp8 would drop; set device.dtype = "
               "\"bfloat16\"",
               to_string(dtype)));
  if (target.cuda && !target.no_fp8.empty()) return unsupported(target.no_fp8);
  if (target.cuda && !own_kernels(job, target).on)
    return unsupported(
        job.device.takes_own_kernels()
            ? "Neap's kernels, which convert to fp8, do not run: " + target.no_own_kernels
            : "device.kernels is \"libtorch\", which leaves out the kernels that convert to fp8");
  for (const std::optional<ModelRole>* role :
       {&models.actor, &models.reference, &models.critic, &models.reward})
    if (*role && multiplies_in_fp8(**role)) return {};
  return unsupported(format("no matrix of a layer has sizes on a rank that are multiples of {}",
                            kernels::fp8::kUnit));
}

std::string_view no_pages_reason(const spec::Job& job, const Target& target,
                                 const JobModels& models) {
  if (!job.generates()) return "the job does not generate";
  const spec::Recipe recipe = spec::describe(job);
  const spec::Architecture& shape =
      models.at(recipe.find(spec::Body::kGenerate)->model).generating();
  return step::no_pages_reason(shape, target.cuda, compute_dtype(job, target),
                               own_kernels(job, target));
}

Status check_pages(const spec::Job& job, const Target& target, const JobModels& models) {
  if (!job.generates() || !step::cache_shape(job).paged()) return {};
  const std::string_view reason = no_pages_reason(job, target, models);
  if (reason.empty()) return {};
  return {ErrorCode::kInvalidArgument,
          format("actor_rollout_ref.rollout.max_total_tokens {}: {}; set it to 0",
                 job.rollout.max_total_tokens, reason)};
}

}  // namespace neap::plan
