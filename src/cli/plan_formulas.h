// `neap plan --formulas`: compares textbook terms with the bytes that a plan counts. The input is a
// job, a model or a file of cases (formulas/case_file.h). A job can also be compared with a run of
// it.
//
// Threads   one.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/json.h"
#include "formulas/case_file.h"

namespace neap::cli {

class PlanFormulas {
 public:
  /// Declares --formulas and its related options.
  void declare(CLI::App& app);
  [[nodiscard]] bool asked() const { return asked_; }
  /// Prints the sheet. `path`: a job's configuration, a file with cases, a config.json or its
  /// folder.
  [[nodiscard]] Status run(const std::string& path, const std::vector<std::string>& overrides,
                           bool json) const;

 private:
  [[nodiscard]] Status run_cases(const std::string& path, bool json) const;
  [[nodiscard]] Status run_job(const spec::Job& job, const std::string& path, bool json) const;
  /// Rejects options that were given; `why` explains it.
  [[nodiscard]] Status refuse_options(const std::string& why, bool degrees) const;

  bool asked_ = false;
  std::int64_t batch_ = 0, length_ = 0, micro_batches_ = 0;  // 0: not given
  formulas::Degrees degrees_{.data = 0};
  std::string unit_, run_;  // `run_` is the output folder of a run
};

}  // namespace neap::cli
