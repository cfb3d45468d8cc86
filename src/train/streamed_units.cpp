// Offloaded weights: blocks, and if needed tables, are in host memory, on disk, or in the files of a
// frozen model. Other units are on the device.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <map>
#include <utility>

#include "base/format.h"
#include "base/status.h"
#include "bridge/no_autograd.h"
#include "bridge/torch_dtypes.h"
#include "train/unit_store.h"
#include "weights/units_in_files.h"

namespace neap::train {
namespace {

using spec::TagKind;

class StreamedUnits : public UnitStore {
 public:
  StreamedUnits(const RankModel& model, ModelPart part)
      : UnitStore(model, std::move(part)),
        blocks_(model.runtime.streamed_blocks(model.tag(TagKind::kBuffers))) {
    for (std::size_t u = 0; u < part_.layout().size(); ++u) {
      const spec::FlatUnit& unit = part_.layout()[u];
      if (storage(u) == nullptr)
        values_.push_back(model.region(TagKind::kWeights, unit.name).narrow(0, 0, unit.elements));
      else if (blocks_.in_files())
        values_.emplace_back();
      else
        values_.push_back(host_tensor(storage(u)->resting_weights(), unit.elements,
                                      model.runtime.compute_dtype()));
    }
  }

  [[nodiscard]] Rests offloaded(std::size_t unit) const override {
    return storage(unit) == nullptr ? Rests() : storage(unit)->resting_weights();
  }
  [[nodiscard]] Rests offloaded_gradients(std::size_t unit) const override {
    return storage(unit) == nullptr ? Rests() : storage(unit)->resting_gradients();
  }
  [[nodiscard]] std::optional<ops::StreamedBase> streamed(at::ScalarType gradients) override;
  [[nodiscard]] at::Tensor gradients(std::size_t unit, at::ScalarType dtype) const override {
    const Rests rests = offloaded_gradients(unit);
    return rests ? host_tensor(*rests, part_.layout()[unit].elements, dtype)
                 : UnitStore::gradients(unit, dtype);
  }
  void keep_gradients(std::size_t unit, Bytes first, Bytes size) override {
    if (offloaded(unit)) blocks_.keep_own(part_.layout()[unit].name, first, size);
  }

  // A model that generates has its tables on the device, so an offloaded unit is a block.
  void bring(std::size_t unit, const at::Tensor& to) override {
    if (!offloaded(unit)) return UnitStore::bring(unit, to);
    throw_if_error(
        blocks_.bring_to_generate(place_of(part_.layout()[unit].block), place_to_generate(unit)));
  }
  void gather_each(const TakeUnit& take) override {
    const bridge::NoAutograd no_autograd;
    const at::Tensor place = model_.region(TagKind::kBlocks, spec::kWholeUnitPart);
    for (std::size_t u = 0; u < values_.size(); ++u) {
      const at::Tensor to = place.narrow(0, 0, part_.layout()[u].elements);
      bring(u, to);
      take(u, to);
    }
  }

 protected:
  /// Null: the unit is on the device.
  [[nodiscard]] const bridge::StreamedBlocks::Storage* storage(std::size_t unit) const {
    const spec::FlatUnit& of = part_.layout()[unit];
    return of.block < 0 ? blocks_.table(of.name) : &blocks_.block(place_of(of.block));
  }
  bridge::StreamedBlocks& blocks_;

 private:
  [[nodiscard]] std::size_t place_of(std::int64_t block) const {
    return static_cast<std::size_t>(model_.spec.shape.place_of_block(block));
  }
};

std::optional<ops::StreamedBase> StreamedUnits::streamed(at::ScalarType gradients) {
  ops::StreamedBase out;
  out.slots = &blocks_;
  // The first unit is a block on a stage without an embedding.
  out.table_on_host =
      part_.layout().front().find(spec::Module::kTokenEmbedding) != nullptr && offloaded(0);
  const auto buffer = [&](const bridge::SlotPart& part) {
    return model_.region(TagKind::kBuffers, part.name);
  };
  const auto of_gradients = [&](const bridge::SlotPart& part) {
    return model_.region(TagKind::kBuffers, part.name, gradients);
  };
  for (const bridge::StreamedBlocks::Slot& slot : blocks_.slots()) {
    out.memory.push_back(buffer(*slot.weights));
    if (slot.gradients) out.gradients.push_back(of_gradients(*slot.gradients));
    if (slot.inputs) out.inputs.push_back(buffer(*slot.inputs));
  }
  if (const auto& slot = blocks_.table_slot()) {
    out.table_memory = buffer(*slot->weights);
    if (slot->gradients) out.table_gradients = of_gradients(*slot->gradients);
  }
  return out;
}

// The model is frozen. Offloaded units have no memory of their own.
class FileUnits final : public StreamedUnits {
 public:
  using StreamedUnits::StreamedUnits;
  [[nodiscard]] std::vector<at::Tensor> places() const override {
    std::vector<at::Tensor> out = values_;
    for (std::size_t u = 0; u < out.size(); ++u) {
      if (out[u].defined()) continue;
      const spec::FlatUnit& unit = part_.layout()[u];
      // The embedding and the head have no copy. Rows of the embedding are read on demand, and the
      // head is read into the buffer of tables.
      out[u] = unit.block < 0
                   ? at::empty({unit.elements},
                               at::dtype(model_.runtime.compute_dtype()).device(at::kMeta))
                   : model_.region(TagKind::kBuffers, blocks_.slots().front().weights->name)
                         .narrow(0, 0, unit.elements);
    }
    return out;
  }
  void read_from(const std::filesystem::path& folder) override;
};

void FileUnits::read_from(const std::filesystem::path& folder) {
  const std::shared_ptr<const weights::WeightFolder> files = model_.spec.folders.weights(folder);
  std::vector<spec::FlatUnit> units;
  for (std::size_t u = 0; u < values_.size(); ++u)
    if (offloaded(u)) units.push_back(part_.layout()[u]);
  const spec::Dtype dtype = bridge::to_step(model_.runtime.compute_dtype());
  const auto found = weights::find_units(*files, units, dtype);
  if (!found)
    throw Error(ErrorCode::kInvalidArgument,
                format("{} has blocks of the {} model in another form than those that the plan "
                       "reads where they are",
                       folder.string(), model_.spec.name()));
  std::map<const weights::SafetensorsFile*, std::shared_ptr<const arena::DiskFile>> opened;
  std::vector<bridge::FileUnit> blocks, tables;
  for (std::size_t u = 0; u < units.size(); ++u) {
    bridge::FileUnit& unit = (units[u].block >= 0 ? blocks : tables).emplace_back();
    for (std::size_t p = 0; p < units[u].parameters.size(); ++p) {
      const weights::WeightFolder::Found& tensor = (*found)[u][p];
      std::shared_ptr<const arena::DiskFile>& file = opened[tensor.file];
      if (file == nullptr)
        file = value_or_throw(
            arena::DiskFile::of_other(tensor.file->descriptor(), tensor.file->path().string()));
      unit.parts.push_back({file.get(), Bytes(tensor.file->offset_of(*tensor.tensor)),
                            Bytes(tensor.tensor->bytes()),
                            spec::tensor_bytes(units[u].parameters[p].offset, dtype)});
    }
  }
  std::vector<std::shared_ptr<const arena::DiskFile>> all;
  all.reserve(opened.size());
  for (const auto& [from, file] : opened) all.push_back(file);
  weights::check_tensors(*found, static_cast<std::size_t>(at::get_num_threads()));
  throw_if_error(blocks_.read_from(std::move(blocks), std::move(tables), std::move(all)));
}

}  // namespace

std::unique_ptr<UnitStore> make_streamed_units(const RankModel& model, ModelPart part) {
  if (model.runtime.streamed_blocks(model.tag(TagKind::kBuffers)).in_files())
    return std::make_unique<FileUnits>(model, std::move(part));
  return std::make_unique<StreamedUnits>(model, std::move(part));
}

}  // namespace neap::train
