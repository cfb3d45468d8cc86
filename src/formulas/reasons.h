// Reasons why a count differs from a formula, derived from the features of the model and the job.
//
// Threads   stateless functions; each returns a phrase without a full stop, "" if no reason is
//           known.
#pragma once

#include <string>

#include "formulas/sizes.h"

namespace neap::formulas {

[[nodiscard]] std::string attention_reason(const spec::Architecture& a);
[[nodiscard]] std::string mlp_reason(const spec::Architecture& a);
[[nodiscard]] std::string norm_reason(const spec::Architecture& a);
[[nodiscard]] std::string embedding_reason(const spec::Architecture& a);
[[nodiscard]] std::string head_reason(const spec::Architecture& a, spec::Head head);
[[nodiscard]] std::string gradient_reason(const ModelSizes& model);
[[nodiscard]] std::string optimizer_reason(const ModelSizes& model);
[[nodiscard]] std::string activation_reason(const ModelSizes& model, Recompute recompute);
[[nodiscard]] std::string cache_reason(const spec::Architecture& a);

/// Joins the non-empty phrases with "; ".
[[nodiscard]] std::string joined(std::initializer_list<std::string> phrases);

}  // namespace neap::formulas
