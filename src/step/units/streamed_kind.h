// Kinds of data that are copied between prefetch buffers on the device and the host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace neap::step {

enum class StreamedKind : std::uint8_t { kWeights, kGradients, kInputs, kStates };

inline constexpr std::array kStreamedKinds = {StreamedKind::kWeights, StreamedKind::kGradients,
                                              StreamedKind::kInputs, StreamedKind::kStates};

constexpr std::size_t index_of(StreamedKind kind) {
  return static_cast<std::size_t>(kind);
}

constexpr std::string_view to_string(StreamedKind kind) {
  constexpr std::array<std::string_view, kStreamedKinds.size()> kWords = {"weights", "gradients",
                                                                          "inputs", "states"};
  return kWords[index_of(kind)];
}

}  // namespace neap::step
