#include "weights/units_in_files.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "base/parallel_for.h"
#include "base/status.h"
#include "spec/model/architecture_file.h"

namespace neap::weights {
WeightFolder::Found find_parameter(const WeightFolder& folder, const std::string& name) {
  if (const WeightFolder::Found found = folder.find(name)) return found;
  const std::string prefix = name.substr(0, name.find('.') + 1);
  const auto& types = spec::architecture_files();
  const auto has_prefix = [&](const auto* type) { return type->blocks.starts_with(prefix); };
  if (prefix.empty() || std::none_of(types.begin(), types.end(), has_prefix)) return {};
  return folder.find(name.substr(prefix.size()));
}

std::optional<TensorsOfUnits> find_units(const WeightFolder& folder,
                                         const std::vector<spec::FlatUnit>& units,
                                         spec::Dtype dtype) {
  TensorsOfUnits out;
  for (const spec::FlatUnit& unit : units) {
    std::vector<WeightFolder::Found>& tensors = out.emplace_back();
    for (const spec::Parameter& parameter : unit.parameters) {
      const WeightFolder::Found found = find_parameter(folder, parameter.name);
      if (!found || found.tensor->dtype != dtype_name(dtype) ||
          found.tensor->shape != parameter.shape)
        return std::nullopt;
      tensors.push_back(found);
    }
  }
  return out;
}

bool has_units(const OpenFolders& folders, const std::filesystem::path& folder,
               const std::vector<spec::FlatUnit>& units, spec::Dtype dtype) {
  try {
    return find_units(*folders.weights(folder), units, dtype).has_value();
  } catch (const Error&) {
    return false;  // loading the model later reports the reason
  }
}

void check_tensors(const TensorsOfUnits& units, std::size_t threads) {
  struct Piece {
    std::size_t tensor;
    std::uint64_t offset, size;
  };
  std::vector<WeightFolder::Found> tensors;
  std::vector<TensorCheck> checks;
  std::vector<Piece> pieces;
  for (const auto& unit : units) {
    for (const WeightFolder::Found& found : unit) {
      if (found.file->checksums() != SafetensorsFile::Checksums::kValid) continue;
      const std::uint64_t bytes = found.tensor->bytes();
      for (std::uint64_t at = 0; at < bytes; at += TensorCheck::kPiece)
        pieces.push_back({tensors.size(), at, std::min(TensorCheck::kPiece, bytes - at)});
      tensors.push_back(found);
      checks.emplace_back(*found.file, *found.tensor);
    }
  }
  parallel_for(pieces.size(), threads, [&](std::size_t i) {
    const Piece& piece = pieces[i];
    const auto memory = std::make_unique_for_overwrite<std::byte[]>(piece.size);
    const std::span<std::byte> bytes(memory.get(), piece.size);
    tensors[piece.tensor].file->read(*tensors[piece.tensor].tensor, piece.offset, bytes);
    checks[piece.tensor].add(piece.offset, bytes);
  });
  for (const TensorCheck& check : checks) check.finish();
}

}  // namespace neap::weights
