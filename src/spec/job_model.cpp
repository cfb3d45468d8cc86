#include "spec/job_model.h"

#include <utility>

#include "base/format.h"
#include "spec/layout.h"

namespace neap::spec {

Result<JobModel> resolve(const Job& job, const Recipe& recipe, ModelId id) {
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
  Result<Architecture> shape = Architecture::from_folder(model.files.base);
  if (!shape.ok()) return fail(shape.status());
  model.shape = *std::move(shape);
  if (source.trained == nullptr) return model;
  model.trained = true;
  model.optimizer = *source.optimizer;
  if (!source.adapted()) return model;
  model.lora = source.trained->lora;
  NEAP_TRY(check_lora(model.shape, model.lora));
  return model;
}

}  // namespace neap::spec
