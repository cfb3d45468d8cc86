#include "spec/job_model.h"

#include "spec/layout.h"

namespace neap::spec {

Result<JobModel> resolve(const Job& job, const Recipe& recipe, ModelId id) {
  const ModelSource& source = *recipe.find(id);
  JobModel model;
  model.id = id;
  model.head = source.head;
  model.generates = recipe.generates(id);
  NEAP_TRY_ASSIGN(model.files, job.model_files(id, source.path, source.adapter));
  NEAP_TRY_ASSIGN(model.shape, Architecture::from_folder(model.files.base));
  if (source.trained == nullptr) return model;
  model.trained = true;
  model.optimizer = *source.optimizer;
  if (!source.adapted()) return model;
  model.lora = source.trained->lora;
  NEAP_TRY(check_lora(model.shape, model.lora));
  return model;
}

}  // namespace neap::spec
