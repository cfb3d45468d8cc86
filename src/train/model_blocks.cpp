// Blocks of a frozen model that are read from its own files on every use.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <map>
#include <memory>
#include <utility>

#include "base/format.h"
#include "base/status.h"
#include "bridge/torch_dtypes.h"
#include "train/model_worker.h"
#include "weights/units_in_files.h"

namespace neap::train {

using spec::TagKind;

std::vector<at::Tensor> ModelWorker::places_of_base() {
  if (sliced_) return sliced_->places();
  std::vector<at::Tensor> out = weights_;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (out[i].defined()) continue;
    // The embedding and the head have no copy. Rows of the embedding are read on demand, and the
    // head is read into the buffer of tables.
    if (layout_[i].block < 0) {
      out[i] =
          at::empty({layout_[i].elements}, at::dtype(runtime_.compute_dtype()).device(at::kMeta));
      continue;
    }
    const bridge::StreamedBlocks& blocks = runtime_.streamed_blocks(tag(TagKind::kBuffers));
    out[i] = runtime_
                 .region(tag(TagKind::kBuffers), blocks.slots().front().weights.name,
                         runtime_.compute_dtype())
                 .narrow(0, 0, layout_[i].elements);
  }
  return out;
}

void ModelWorker::read_blocks_from(const std::filesystem::path& folder) {
  const weights::WeightFolder files = weights::WeightFolder::open(folder);
  std::vector<spec::FlatUnit> units = layout_;
  std::erase_if(units, [this](const spec::FlatUnit& unit) { return hosted(unit) == nullptr; });
  const spec::Dtype dtype = bridge::to_step(runtime_.compute_dtype());
  const auto found = weights::find_units(files, units, dtype);
  if (!found)
    throw Error(ErrorCode::kInvalidArgument,
                format("{} has blocks of the {} model in another form than those that the plan "
                       "reads where they are",
                       folder.string(), spec_.name()));
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
  for (const auto& [from, file] : opened) all.push_back(file);
  weights::check_tensors(*found, static_cast<std::size_t>(at::get_num_threads()));
  throw_if_error(runtime_.streamed_blocks(tag(TagKind::kBuffers))
                     .read_from(std::move(blocks), std::move(tables), std::move(all)));
}

}  // namespace neap::train
