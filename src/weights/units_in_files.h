// Checks whether the files of a model store its units in the needed form, so that units can be read
// from these files repeatedly.
//
// Threads   stateless functions.
//
// Failure   that of SafetensorsFile; has_units() has none.
//
// Cost      finding reads the headers; checking is one pass over the bytes.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "spec/model/layout.h"
#include "spec/types/dtype.h"
#include "weights/open_folders.h"
#include "weights/safetensors.h"

namespace neap::weights {

/// Finds a parameter's tensor by its name, or by the name without the prefix that base model files
/// lack.
[[nodiscard]] WeightFolder::Found find_parameter(const WeightFolder& folder,
                                                 const std::string& name);

/// The parameters' tensors of each unit; the folder owns them. nullopt: some parameter is missing
/// in this shape and type.
using TensorsOfUnits = std::vector<std::vector<WeightFolder::Found>>;
[[nodiscard]] std::optional<TensorsOfUnits> find_units(const WeightFolder& folder,
                                                       const std::vector<spec::FlatUnit>& units,
                                                       spec::Dtype dtype);
/// Whether the files have these units. Also false if no file can be read.
[[nodiscard]] bool has_units(const OpenFolders& folders, const std::filesystem::path& folder,
                             const std::vector<spec::FlatUnit>& units, spec::Dtype dtype);

/// Compares tensors with their files' checksums, if any, with this number of threads. kCorrupt if
/// they differ.
void check_tensors(const TensorsOfUnits& units, std::size_t threads);

}  // namespace neap::weights
