// Every file of architectures/ that the build found (src/spec/CMakeLists.txt writes the list).
#include <algorithm>
#include <vector>

#include "spec/model/architecture_file.h"

namespace neap::spec {
namespace architectures {
#define NEAP_ARCHITECTURE(name) extern const ArchitectureFile name;
#include "spec/architectures.inc"
#undef NEAP_ARCHITECTURE
}  // namespace architectures

const std::vector<const ArchitectureFile*>& architecture_files() {
  static const std::vector<const ArchitectureFile*> kFiles = {
#define NEAP_ARCHITECTURE(name) &architectures::name,
#include "spec/architectures.inc"
#undef NEAP_ARCHITECTURE
  };
  return kFiles;
}

const ArchitectureFile* find_architecture_file(std::string_view model_type) {
  const auto& files = architecture_files();
  const auto it = std::find_if(files.begin(), files.end(), [&](const ArchitectureFile* file) {
    return file->model_type == model_type;
  });
  return it == files.end() ? nullptr : *it;
}

}  // namespace neap::spec
