#include "spec/recipe/job_model.h"

#include <utility>

#include "base/format.h"
#include "spec/model/layout.h"
#include "spec/model/pipeline.h"
#include "spec/model/tensor_parallel.h"

namespace neap::spec {

Result<JobModel> resolve(const Job& job, const Recipe& recipe, ModelId id, std::int64_t rank) {
  const ModelSource& source = *recipe.find(id);
  JobModel model;
  model.id = id;
  model.head = source.head;
  model.generates = recipe.generates(id);
  const auto fail = [&](const Status& status) {
    return Status(status).with_context(format("reading the model of {}", to_string(id)));
  };
  Result<ModelFiles> files = job.model_files(id, source.path, source.adapter);
  if (!files.ok()) return fail(files.status());
  model.files = *std::move(files);
  Result<Architecture> shape = job.configs.architecture(model.files.base);
  if (!shape.ok()) return fail(shape.status());
  model.whole = *std::move(shape);
  model.whole.pipeline.chunks = job.parallel.virtual_pipeline_model_parallel_size;
  model.whole.pipeline.zero_bubble = job.parallel.zero_bubble();
  for (const double blocks : job.placement(id).pipeline_model_parallel_layout)
    model.whole.pipeline.layout.push_back(static_cast<std::int64_t>(blocks));
  const Mesh mesh = job.mesh(id);
  const TensorShard shard{mesh.size(Axis::kTensor), mesh.coordinate(rank, Axis::kTensor),
                          job.divides_rows(id)};
  NEAP_TRY_ASSIGN(model.shape, part_of(model.whole, shard, to_string(id)));
  NEAP_TRY_ASSIGN(model.shape, stage_of(model.shape, model.head, mesh.size(Axis::kPipe),
                                        mesh.coordinate(rank, Axis::kPipe), to_string(id)));
  if (model.generates && (job.has_generation_placement() || job.copies_rollout_weights())) {
    const Mesh there = job.generation_mesh();
    NEAP_TRY_ASSIGN(model.generation_part, part_of(model.whole,
                                                   {there.size(Axis::kTensor),
                                                    there.coordinate(rank, Axis::kTensor), false},
                                                   to_string(id)));
  }
  if (source.trained == nullptr) return model;
  model.trained = true;
  model.optimizer = *source.optimizer;
  if (!source.adapted()) return model;
  model.lora = source.trained->lora;
  NEAP_TRY(check_lora(model.whole, model.lora));
  return model;
}

}  // namespace neap::spec
