// Whether the files of a model have units of it as they are needed, so that they can be read where they are, again and
// again.
//
// Threads   functions without state.
// Failure   as of SafetensorsFile; has_units() has none.
// Cost      of finding, that of reading the headers; of checking, one pass over the bytes.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "spec/dtype.h"
#include "spec/layout.h"
#include "weights/safetensors.h"

namespace neap::weights {

/// A parameter's tensor under its name, or without the prefix that files of a base model lack.
[[nodiscard]] WeightFolder::Found find_parameter(const WeightFolder& folder,
                                                 const std::string& name);

/// Of each unit its parameters' tensors, which the folder owns. nullopt: some parameter is not there in this shape and type.
using TensorsOfUnits = std::vector<std::vector<WeightFolder::Found>>;
[[nodiscard]] std::optional<TensorsOfUnits> find_units(const WeightFolder& folder,
                                                       const std::vector<spec::FlatUnit>& units,
                                                       spec::Dtype dtype);
/// Whether there are such. False, too, where there are no files that can be read.
[[nodiscard]] bool has_units(const std::filesystem::path& folder,
                             const std::vector<spec::FlatUnit>& units, spec::Dtype dtype);

/// Compares tensors with their files' checksums, of files that have some: kCorrupt. By so many threads.
void check_tensors(const TensorsOfUnits& units, std::size_t threads);

}  // namespace neap::weights
