// Kept experience as files: a folder with one safetensors file per step (trainer.experience).
//
//   OUTPUT/experience/step_N.safetensors   the whole batch of step N, counted from 1, in its order:
//                                          the tensors of spec/recipe/kept_experience.h; metadata names the
//                                          tokenizer, the model and the metrics of the experience
//
// Files are written under temporary names and renamed. Space is reserved first, so that a full disk
// leaves no part of a file.
//
// Threads   values and stateless functions.
// Failure   Error with the file and what to do. A file is not trusted: shapes are compared before
//           memory is allocated, then tokens, lengths and masks are checked.
// Memory    one step in host memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>

#include "rlhf/trainer/trainer.h"
#include "spec/job/job.h"
#include "spec/recipe/kept_experience.h"

namespace neap::rlhf {

inline constexpr const char* kExperienceFolder = "experience";

/// Properties that a job must share with the run that kept the experience.
struct ExperienceOrigin {
  std::string tokenizer;  ///< hash of its files
  std::string model;      ///< the actor's shape, for messages
  std::int64_t vocabulary = 0;
};
/// The schedule of that run.
struct KeptSchedule {
  std::int64_t total_steps = 0, steps_per_epoch = 0;
};

/// The whole batch of one step.
struct KeptStep {
  std::array<at::Tensor, spec::kKeptFields> tensors;
  Metrics metrics;
  [[nodiscard]] at::Tensor& operator[](spec::KeptField field) {
    return tensors[static_cast<std::size_t>(field)];
  }
  [[nodiscard]] const at::Tensor& operator[](spec::KeptField field) const {
    return tensors[static_cast<std::size_t>(field)];
  }
};

/// Writes the tensors of spec::kept_tensors(job), which must be defined.
void write_kept_step(const std::filesystem::path& file, const spec::Job& job, const KeptStep& step,
                     const ExperienceOrigin& origin, const KeptSchedule& schedule);
/// Reads these tensors.
[[nodiscard]] KeptStep read_kept_step(const std::filesystem::path& file, const spec::Job& job,
                                      const ExperienceOrigin& origin);

/// The steps in a folder.
class KeptSteps {
 public:
  /// `folder` is the output folder of a run, or the folder with the files.
  explicit KeptSteps(const std::filesystem::path& folder);
  /// The file of step `step`, counted from 1.
  [[nodiscard]] static std::filesystem::path file_of(const std::filesystem::path& folder,
                                                     std::int64_t step);
  [[nodiscard]] std::filesystem::path file(std::int64_t step) const {
    return file_of(folder_, step);
  }
  [[nodiscard]] const std::set<std::int64_t>& steps() const { return steps_; }
  [[nodiscard]] KeptSchedule schedule() const;
  /// Fails unless every step after `done` up to `last` is there.
  void expect(std::int64_t done, std::int64_t last) const;

  /// The steps whose files are in `folder`; none if it cannot be listed.
  [[nodiscard]] static std::set<std::int64_t> list(const std::filesystem::path& folder);

 private:
  std::filesystem::path folder_;
  std::set<std::int64_t> steps_;
};

}  // namespace neap::rlhf
