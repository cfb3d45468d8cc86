// Builds the lines of a sheet. Its code is in two files.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "formulas/sheet.h"

namespace neap::formulas {

class SheetBuilder {
 public:
  /// `degrees`: parallel sizes of each model. `alike`: they are all the same.
  SheetBuilder(const JobSizes& sizes, DegreesOfModels degrees, bool alike)
      : sizes_(sizes), degrees_(std::move(degrees)), alike_(alike) {}

  [[nodiscard]] Sheet build();

 private:
  [[nodiscard]] std::string letters() const;
  /// Whether an earlier model has the same parameters, so that these were already shown.
  [[nodiscard]] bool shown_before(const ModelSizes& model) const;
  /// Formula of the activations that a layer stores under `recompute`. The papers assume 2 bytes
  /// per activation.
  [[nodiscard]] std::string layer_formula(Recompute recompute, const Degrees& degrees) const;
  /// "N_t" if some parameters do not train.
  [[nodiscard]] const char* trained_letter() const;
  /// Returns nothing if the models are sharded: the counted plan has whole models.
  [[nodiscard]] std::optional<double> unless_divided(std::optional<double> counted) const {
    return divided() ? std::nullopt : counted;
  }
  [[nodiscard]] const Degrees& degrees(const ModelSizes& model) const {
    return degrees_.at(model.role.id);
  }
  /// Whether any model is sharded.
  [[nodiscard]] bool divided() const {
    return std::any_of(degrees_.begin(), degrees_.end(),
                       [](const auto& of) { return of.second.divided(); });
  }
  /// Sum over all models.
  [[nodiscard]] double tags(spec::TagKind kind) const;
  Line& add_rank_line(const char* id, const char* term, std::string formula, double value,
                      std::optional<double> counted, const char* why = "the terms above");
  void add_parameters(const ModelSizes& model);
  void add_states(const ModelSizes& model);
  void add_mixed_precision(const ModelSizes& model);
  void add_activations(const ModelSizes& model);
  void add_divided_activations(const ModelSizes& model);
  void add_cache();
  [[nodiscard]] std::string cache_formula() const {
    return sizes_.cached_in_pages ? "2 w c l h" : "2 w b (s + n) l h";
  }
  /// Adds a rank's shard of a model with its own parallel sizes.
  void add_rank_part(const ModelSizes& model);
  void add_rank_states();
  void add_rank_rest();
  void add_bubble(const ModelSizes& model);
  void add_generation();
  [[nodiscard]] double largest_training_transient() const;
  void add_by_ranks();
  void add_counted_slices();

  void begin(std::string title) { sheet_.sections.push_back({std::move(title), {}}); }
  Line& add(Line line);
  [[nodiscard]] std::optional<double> tag(const ModelSizes& model, spec::TagKind kind) const {
    return sizes_.tag({kind, model.role.id});
  }
  /// States of a model on one rank, with its parallel sizes and ZeRO `stage` over `ranks`.
  [[nodiscard]] States rank_states(const ModelSizes& model, std::int64_t stage, double ranks,
                                   double gradient_bytes) const;
  /// States of all models on one rank, each with its own parallel sizes.
  [[nodiscard]] States rank_states() const;
  [[nodiscard]] ParameterBytes bytes() const { return adam(sizes_.width); }

  const JobSizes& sizes_;
  const DegreesOfModels degrees_;
  const bool alike_;
  Sheet sheet_;
};

/// Writes an integer with all digits.
[[nodiscard]] std::string number(double value);

}  // namespace neap::formulas
