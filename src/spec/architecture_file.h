// What one file of spec/architectures provides: how a model_type's config.json becomes features, and
// what its classes and parameters are called.
//
// architectures/<model_type>.cpp defines `const ArchitectureFile spec::architectures::<model_type>`.
// The build registers every file of that folder; nothing else names a model_type.
//
// Threads   constants, and functions without state.
// Failure   read() reports through Fields.
#pragma once

#include <array>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "spec/architecture.h"
#include "spec/fields.h"

namespace neap::spec {

/// Names of modules in a checkpoint. Those of a block are relative to it ("self_attn.q_proj").
/// A name may be given for a module that a model of this type does not always have.
class ModuleNames {
 public:
  constexpr ModuleNames(std::initializer_list<std::pair<Module, std::string_view>> names) {
    set(names);
  }
  /// These, with some modules called otherwise.
  [[nodiscard]] constexpr ModuleNames with(
      std::initializer_list<std::pair<Module, std::string_view>> names) const {
    ModuleNames out = *this;
    out.set(names);
    return out;
  }
  [[nodiscard]] constexpr std::string_view operator[](Module module) const {
    return names_[static_cast<std::size_t>(module)];
  }

 private:
  constexpr void set(std::initializer_list<std::pair<Module, std::string_view>> names) {
    for (const auto& [module, name] : names) names_[static_cast<std::size_t>(module)] = name;
  }
  std::array<std::string_view, kModules> names_{};
};

struct ArchitectureFile {
  std::string_view model_type;
  std::string_view language_model_class;  ///< "LlamaForCausalLM"
  std::string_view scalar_class;          ///< "LlamaForSequenceClassification"
  /// Fills everything but model_type and config. Checks of single features that every type shares
  /// follow it (architecture.cpp).
  void (*read)(Fields& fields, Architecture& a);
  std::string_view base_prefix;  ///< base_model_prefix: files of the bare model lack "<prefix>."
  std::string_view blocks;       ///< in front of a block's number: "model.layers"
  ModuleNames names;
};

/// Every registered file, by model_type in alphabetical order.
[[nodiscard]] const std::vector<const ArchitectureFile*>& architecture_files();
/// Null when no file has that type.
[[nodiscard]] const ArchitectureFile* find_architecture_file(std::string_view model_type);

}  // namespace neap::spec
