// States as a checkpoint's file has them: whole, found by name, written piece by piece.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "model/safetensors.h"
#include "spec/placement.h"

namespace neap::train {

/// Pieces have checksums of their own.
constexpr auto kFilePieceBytes = static_cast<std::int64_t>(model::TensorCheck::kPiece);

using FilePieceVisit =
    std::function<void(std::int64_t first, std::int64_t count, std::uint64_t offset)>;
/// visit(first element, elements, bytes from the tensor's start) for the pieces of a state, in order.
void for_each_file_piece(const spec::WholeState& state, const FilePieceVisit& visit);

/// One of `states` has the name.
[[nodiscard]] const spec::WholeState& state_named(const std::vector<spec::WholeState>& states,
                                                  std::string_view name);

}  // namespace neap::train
