// The interface of a file in spec/architectures: it converts a model_type's config.json to
// features, and names classes and parameters.
//
// architectures/<model_type>.cpp defines `const ArchitectureFile
// spec::architectures::<model_type>`. The build registers every file of that folder; nothing else
// names a model_type.
//
// Threads   constants, and stateless functions.
// Failure   read() reports through Fields.
#pragma once

#include <array>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "spec/model/architecture.h"
#include "spec/types/fields.h"

namespace neap::spec {

/// Names of modules in a checkpoint. Names within a block are relative to it ("self_attn.q_proj").
/// A name may be given for a module that only some models of this type have.
class ModuleNames {
 public:
  constexpr ModuleNames(std::initializer_list<std::pair<Module, std::string_view>> names) {
    set(names);
  }
  /// A copy with some names replaced.
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
  /// Sets all fields except model_type and config. Checks that all types share follow in
  /// architecture.cpp.
  void (*read)(Fields& fields, Architecture& a);
  /// Path of the blocks, before a block's number: "model.layers". Files of the bare model lack the
  /// first part in every name.
  std::string_view blocks;
  ModuleNames names;
};

/// All registered files, sorted by model_type.
[[nodiscard]] const std::vector<const ArchitectureFile*>& architecture_files();
/// Null if no file has that type.
[[nodiscard]] const ArchitectureFile* find_architecture_file(std::string_view model_type);

}  // namespace neap::spec
