// The home of a tensor is its place while no layer computes with it. A search chooses ModelHomes.
// derive() says what a rank then stores; the recipe carries that, plans count it, and runs follow
// it.
//
// The model's own files are no home: plans read frozen tensors on disk from them if they can.
//
// Threads   values and stateless functions.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string_view>

#include "spec/types/data_parallel.h"
#include "spec/types/task.h"

namespace neap::spec {

/// Each takes less of the device than the one before, and kDisk less of the host than kHost.
enum class Home : std::uint8_t {
  kDevice,  ///< on the device while a phase uses it; other phases may still move it to the host
  kHost,    ///< in host memory, and loaded while it is used
  kDisk,    ///< on disk, and loaded through pinned staging buffers
};

/// Facts of a home other than the device.
struct HomeTraits {
  Home home;
  UpdateMode update;      ///< of a model whose optimizer states are there
  bool staged;            ///< data are in files; the host has pinned staging buffers
  std::string_view name;  ///< in texts
};
inline constexpr std::array kOffloadHomes = {
    HomeTraits{Home::kHost, UpdateMode::kStreamed, false, "the CPU"},
    HomeTraits{Home::kDisk, UpdateMode::kDisk, true, "disk"},
};
/// Null for the device.
[[nodiscard]] constexpr const HomeTraits* traits_of(Home home) {
  for (const HomeTraits& each : kOffloadHomes)
    if (each.home == home) return &each;
  return nullptr;
}
[[nodiscard]] constexpr bool is_staged(Home home) {
  const HomeTraits* const traits = traits_of(home);
  return traits != nullptr && traits->staged;
}

struct ModelHomes {
  /// Weights of the layers, with the gradients of trained ones. With ZeRO-3: this rank's shard of
  /// all weights.
  Home layers = Home::kDevice;
  Home tables = Home::kDevice;     ///< embedding and head, with their gradients, where possible
  Home inputs = Home::kDevice;     ///< inputs of the layers, from the forward to the backward
  Home gradients = Home::kDevice;  ///< with ZeRO-3: this rank's shard of the gradients
  UpdateMode update = UpdateMode::kJoined;  ///< implies the home of the optimizer states
  /// With offloaded or sharded layers: micro-batches that pass through a layer before the next
  /// layer is loaded.
  std::int64_t together = 1;
  [[nodiscard]] constexpr Home states() const {
    for (const HomeTraits& each : kOffloadHomes)
      if (each.update == update) return each.home;
    return Home::kDevice;
  }
  friend auto operator<=>(const ModelHomes&, const ModelHomes&) = default;
};
inline constexpr std::array kHomes = {&ModelHomes::layers, &ModelHomes::tables, &ModelHomes::inputs,
                                      &ModelHomes::gradients};

/// The homes of a model, or of the tensors of it that a phase uses, and what decides how much a
/// rank has of them.
struct ModelStorage : ModelHomes {
  bool shards_weights = false;  ///< ZeRO-3: layers, embedding and head are gathered before use
  /// Each rank keeps only the gradients that it updates, and backward holds full gradients of at
  /// most two units.
  bool shards_gradients = false;
  /// Whether layers are loaded one after another.
  [[nodiscard]] constexpr bool streams_layers() const {
    return layers != Home::kDevice && !shards_weights;
  }
  /// Whether this rank's ZeRO-3 shard is loaded for each gather.
  [[nodiscard]] constexpr bool streams_shard() const {
    return layers != Home::kDevice && shards_weights;
  }
  /// Whether layers pass through prefetch buffers: loaded, or gathered from shards.
  [[nodiscard]] constexpr bool brings_layers() const {
    return layers != Home::kDevice || shards_weights;
  }
  /// Whether anything passes through prefetch buffers.
  [[nodiscard]] constexpr bool uses_buffers() const { return brings_layers() || streams_inputs(); }
  [[nodiscard]] constexpr bool streams_tables() const { return tables != Home::kDevice; }
  [[nodiscard]] constexpr bool streams_inputs() const { return inputs != Home::kDevice; }
  [[nodiscard]] constexpr bool streams_gradients() const { return gradients != Home::kDevice; }
  /// Whether an update loads optimizer states in parts.
  [[nodiscard]] constexpr bool streams_states() const { return states() != Home::kDevice; }
  /// The same facts with other homes.
  [[nodiscard]] constexpr ModelStorage with(const ModelHomes& homes) const {
    ModelStorage out = *this;
    static_cast<ModelHomes&>(out) = homes;
    return out;
  }
  friend auto operator<=>(const ModelStorage&, const ModelStorage&) = default;
};

/// The storage of a model with these homes on a rank. Homes of tensors that the rank does not have
/// are kDevice. `adapted`: it trains an adapter.
[[nodiscard]] inline ModelStorage derive(const ModelHomes& homes, const DataParallel& ranks,
                                         bool trained, bool adapted) {
  ModelStorage out{homes};
  const bool trains_layers = trained && !adapted;
  out.shards_weights = ranks.slices_weights();
  if (!out.streams_layers()) out.tables = Home::kDevice;
  if (!out.streams_shard() || !trains_layers) out.gradients = Home::kDevice;
  if (!trained) {
    out.inputs = Home::kDevice;
    out.update = UpdateMode::kJoined;
  }
  // Offloaded layers that are trained have their whole gradients with them.
  out.shards_gradients =
      trained && ranks.slices_gradients() && !(out.streams_layers() && trains_layers);
  return out;
}

}  // namespace neap::spec
