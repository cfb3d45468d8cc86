// Cases of a model or job with published numbers: examples/plan/*.toml.
//
//   source = "..."                    # of the published numbers
//   unit = "GiB"                      # of the published numbers and of the printed sheet
//   model = "models/bloom-7b"         # folder with config.json; or job = "grpo.toml"
//   [[cases]]
//   name = "bfloat16, TP 8"
//   batch = 1                         # for a model: sequences of a micro-batch,
//   length = 2048                     # tokens of a sequence,
//   micro_batches = 4                 # and micro-batches of an update
//   set = ["device.dtype=bfloat16"]   # keys of the job
//   tensor = 8                        # also pipeline, data, zero, sequence_parallel
//   published = { weights = 1.6 }     # by the last part of a line's id, "rank.*" or "MODEL.*"
//   rounded_to = 0.1                  # unit of the last published digit
//   why = { weights = "..." }         # reason if the formula's value differs
//   device = 32                       # memory of a rank's device; fits = false: training does not fit
//
// Threads   stateless functions.
//
// Failure   Status with file, line and key; for a job as in spec::Job::load.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "formulas/sheet.h"
#include "spec/job/job.h"

namespace neap::formulas {

/// A published value. Its term is the part of Line::id after the dot.
struct PublishedTerm {
  std::string term;
  double value = 0;  ///< in the file's unit
  std::string why;
};
/// Batch sizes for training a model without a job.
struct ModelBatch {
  std::int64_t sequences = 1;      ///< of a micro-batch
  std::int64_t length = 0;         ///< tokens per sequence; 0: 2 048, or the model's maximum
  std::int64_t micro_batches = 1;  ///< per update
};
struct Case {
  std::string name;
  std::vector<std::string> set;
  ModelBatch batch{.micro_batches = 0};  ///< for `model`; micro_batches 0: one per pipeline stage
  Degrees degrees{.data = 0};            ///< data 0: from the job's ranks
  double rounded_to = 1;
  std::vector<PublishedTerm> published;
  double device = 0;  ///< memory of a rank's device, in the file's unit; 0: not given
  bool fits = true;   ///< expected result: rank.total does not exceed it
};
struct CaseFile {
  std::string source;
  Scale scale = Scale::kGib;
  std::filesystem::path model, job;  ///< one of the two; absolute or below the working folder
  std::vector<Case> cases;
};

/// Whether a file has cases rather than a job.
[[nodiscard]] Result<bool> has_cases(const std::filesystem::path& file);
[[nodiscard]] Result<CaseFile> read_cases(const std::filesystem::path& file);

/// Loads supervised training of a model on a GPU with padded batches. Plans of a model without a
/// job use it. `folder` has the config.json.
[[nodiscard]] Status load_model(const std::filesystem::path& folder, const ModelBatch& batch,
                                const std::vector<std::string>& set, spec::Job& job);
/// Loads the job of a case.
[[nodiscard]] Status load_case(const CaseFile& file, const Case& of, spec::Job& job);
/// Adds the case's published values to the lines. Fails on a term that the sheet lacks.
[[nodiscard]] Status add_published(const CaseFile& file, const Case& of, Sheet& sheet);

}  // namespace neap::formulas
