#include "spec/types/lora.h"

#include <algorithm>
#include <cmath>

namespace neap::spec {

bool is_called(std::string_view path, std::string_view name) {
  if (!path.ends_with(name)) return false;
  return path.size() == name.size() || path[path.size() - name.size() - 1] == '.';
}

LoraModule LoraShape::of(std::string_view path) const {
  if (!modules.empty()) {
    const auto at = modules.find(path);
    return at == modules.end() ? LoraModule() : at->second;
  }
  const bool covered = std::any_of(targets.begin(), targets.end(), [&](const std::string& target) {
    return target == kAllLinear || is_called(path, target);
  });
  return covered ? LoraModule{rank, alpha} : LoraModule();
}

double LoraShape::scale(const LoraModule& module) const {
  const auto r = static_cast<double>(module.rank);
  return module.alpha / (rank_stabilized ? std::sqrt(r) : r);
}

}  // namespace neap::spec
