// Builds the lines of a sheet: what SheetBuilder's two files share.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "formulas/sheet.h"

namespace neap::formulas {

class SheetBuilder {
 public:
  /// `degrees`: of each model; `alike`: they are the same.
  SheetBuilder(const JobSizes& sizes, DegreesOfModels degrees, bool alike)
      : sizes_(sizes), degrees_(std::move(degrees)), alike_(alike) {}

  [[nodiscard]] Sheet build();

 private:
  [[nodiscard]] std::string letters() const;
  /// An earlier model has the same parameters.
  [[nodiscard]] bool shown_before(const ModelSizes& model) const;
  /// Of a layer that keeps what `recompute` leaves; the papers' activations have 2 bytes.
  [[nodiscard]] std::string layer_formula(Recompute recompute, const Degrees& degrees) const;
  /// "N_t" where some parameters do not train.
  [[nodiscard]] const char* trained_letter() const;
  /// Nothing where the models are divided: the counted plan has whole ones.
  [[nodiscard]] std::optional<double> unless_divided(std::optional<double> counted) const {
    return divided() ? std::nullopt : counted;
  }
  [[nodiscard]] const Degrees& degrees(const ModelSizes& model) const {
    return degrees_.at(model.role.id);
  }
  /// Any model.
  [[nodiscard]] bool divided() const {
    return std::any_of(degrees_.begin(), degrees_.end(),
                       [](const auto& of) { return of.second.divided(); });
  }
  /// Of all models.
  [[nodiscard]] double tags(spec::TagKind kind) const;
  Line& add_rank_line(const char* id, const char* term, std::string formula, double value,
                      std::optional<double> counted, const char* why = "the terms above");
  void add_parameters(const ModelSizes& model);
  void add_states(const ModelSizes& model);
  void add_mixed_precision(const ModelSizes& model);
  void add_activations(const ModelSizes& model);
  void add_divided_activations(const ModelSizes& model);
  void add_cache();
  /// What a rank has of a model that is divided in its own way.
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
  /// Of a model on one rank, as its parts and ZeRO's stage over `ranks` divide it.
  [[nodiscard]] States rank_states(const ModelSizes& model, std::int64_t stage, double ranks,
                                   double gradient_bytes) const;
  /// Of all models, as each is divided.
  [[nodiscard]] States rank_states() const;
  [[nodiscard]] ParameterBytes bytes() const { return adam(sizes_.width); }

  const JobSizes& sizes_;
  const DegreesOfModels degrees_;
  const bool alike_;
  Sheet sheet_;
};

/// An integer in full.
[[nodiscard]] std::string number(double value);

}  // namespace neap::formulas
