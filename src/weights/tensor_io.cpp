#include "weights/tensor_io.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>

#include "base/format.h"
#include "base/status.h"
#include "bridge/torch_dtypes.h"
#include "weights/finite.h"
#include "weights/tensor_pieces.h"

namespace neap::weights {
namespace {

using at::ScalarType;
using at::Tensor;

constexpr std::uint64_t kPieceValues = kPieceBytes / sizeof(float);

// Types in files that models do not compute with.
struct StoredDtype {
  ScalarType type;
  const char* name;
};
constexpr StoredDtype kStoredDtypes[] = {{at::kFloat8_e4m3fn, "F8_E4M3"},
                                         {at::kFloat8_e5m2, "F8_E5M2"},
                                         {at::kInt, "I32"},
                                         {at::kShort, "I16"},
                                         {at::kChar, "I8"},
                                         {at::kByte, "U8"}};

ScalarType type_of(std::string_view name, const std::string& where) {
  for (const DtypeName& d : kDtypeNames)
    if (name == d.name) return bridge::to_aten(d.type);
  for (const StoredDtype& d : kStoredDtypes)
    if (name == d.name) return d.type;
  throw Error(ErrorCode::kUnsupported,
              format("{} has the dtype {}, which is not read", where, name));
}

std::string where_of(const SafetensorsFile& file, const TensorEntry& entry) {
  return format("{}: tensor \"{}\"", file.path().string(), entry.name);
}

std::string comma_separated(at::IntArrayRef shape) {
  std::string text;
  for (const auto d : shape) text += (text.empty() ? "" : ", ") + std::to_string(d);
  return text;
}

std::uint64_t elements_of(const Tensor& t) {
  return static_cast<std::uint64_t>(t.numel());
}

}  // namespace

const char* dtype_name(ScalarType type) {
  for (const DtypeName& d : kDtypeNames)
    if (bridge::to_aten(d.type) == type) return d.name;
  for (const StoredDtype& d : kStoredDtypes)
    if (d.type == type) return d.name;
  throw Error(ErrorCode::kUnsupported,
              format("Tensors of {} cannot be saved", c10::toString(type)));
}

void check_tensor(const SafetensorsFile& file, const TensorEntry& entry, at::IntArrayRef shape,
                  ScalarType wanted) {
  const std::string where = where_of(file, entry);
  if (at::IntArrayRef(entry.shape) != shape) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{} has shape [{}], the model's is [{}]", where,
                       comma_separated(entry.shape), comma_separated(shape)));
  }
  const ScalarType type = type_of(entry.dtype, where);
  if (type != wanted && !(at::isFloatingType(type) && at::isFloatingType(wanted)))
    throw Error(ErrorCode::kInvalidArgument,
                format("{} is {}, where {} is wanted", where, entry.dtype, dtype_name(wanted)));
}

void read_tensors(const std::vector<TensorRead>& reads) {
  std::vector<Tensor> flat;
  std::vector<ScalarType> types;
  std::vector<TensorPiece> pieces;
  std::vector<TensorCheck> checks;
  std::vector<std::atomic<bool>> not_finite(reads.size());
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const TensorRead& read = reads[i];
    checks.emplace_back(*read.file, *read.entry);
    check_tensor(*read.file, *read.entry, read.target.sizes(), read.target.scalar_type());
    types.push_back(type_of(read.entry->dtype, where_of(*read.file, *read.entry)));
    flat.push_back(read.target.detach().view(-1));
    cut_pieces(i, elements_of(flat.back()), width_of(types.back()), pieces);
  }
  for_each_piece(flat, pieces, all_threads(),
                 [&](const TensorPiece& piece, PieceBuffer& raw, PieceBuffer& converted) {
                   const TensorRead& read = reads[piece.tensor];
                   const ScalarType type = types[piece.tensor];
                   const PieceValues values(flat[piece.tensor], piece.first, piece.count);
                   std::byte* to = values.place(type, raw);
                   const std::uint64_t width = width_of(type);
                   read.file->read(*read.entry, piece.first * width, {to, piece.count * width});
                   const std::span<const std::byte> bytes(to, piece.count * width);
                   checks[piece.tensor].add(piece.first * width, bytes);
                   if (!all_finite(read.entry->dtype, bytes)) not_finite[piece.tensor] = true;
                   values.store(to, type, converted);
                 });
  for (const TensorCheck& check : checks) check.finish();
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (not_finite[i])
      throw Error(ErrorCode::kCorrupt, format("{} has values that are not finite (NaN or infinity)",
                                              where_of(*reads[i].file, *reads[i].entry)));
  }
}

Tensor read_float(const SafetensorsFile& file, const TensorEntry& entry) {
  Tensor out = at::empty(entry.shape, at::kFloat);
  read_tensors({{&file, &entry, out}});
  return out;
}

const TensorEntry& entry_of(const SafetensorsFile& file, const std::string& name) {
  const TensorEntry* entry = file.find(name);
  if (entry == nullptr)
    throw Error(ErrorCode::kNotFound,
                format("{} has no tensor \"{}\"", file.path().string(), name));
  return *entry;
}

void write_tensors(const std::vector<TensorWrite>& writes, std::size_t threads,
                   const PieceSink& sink) {
  std::vector<Tensor> flat;
  std::vector<TensorPiece> pieces;
  for (std::size_t i = 0; i < writes.size(); ++i) {
    flat.push_back(writes[i].tensor.detach().contiguous().view(-1));
    cut_pieces(i, elements_of(flat.back()), width_of(writes[i].dtype), pieces);
  }
  for_each_piece(flat, pieces, threads,
                 [&](const TensorPiece& piece, PieceBuffer& copied, PieceBuffer& converted) {
                   const TensorWrite& write = writes[piece.tensor];
                   const std::uint64_t width = width_of(write.dtype);
                   const std::byte* from = PieceValues(flat[piece.tensor], piece.first, piece.count)
                                               .load(write.dtype, copied, converted);
                   sink(write.number, piece.first * width, {from, piece.count * width});
                 });
}

void fill_tensor(const Tensor& target,
                 const std::function<void(std::uint64_t, std::span<float>)>& fill) {
  const Tensor flat = target.detach().view(-1);
  std::vector<TensorPiece> pieces;
  cut_pieces(0, elements_of(flat), sizeof(float), pieces);
  for_each_piece({flat}, pieces, all_threads(),
                 [&](const TensorPiece& piece, PieceBuffer& made, PieceBuffer& converted) {
                   const PieceValues values(flat, piece.first, piece.count);
                   std::byte* to = values.place(at::kFloat, made);
                   fill(piece.first / kPieceValues, {reinterpret_cast<float*>(to), piece.count});
                   values.store(to, at::kFloat, converted);
                 });
}

namespace {

std::vector<TensorInfo> infos_of(const NamedTensors& tensors) {
  std::vector<TensorInfo> out;
  for (const auto& [name, tensor] : tensors)
    out.push_back({name, dtype_name(tensor.scalar_type()), tensor.sizes().vec()});
  return out;
}

}  // namespace

TensorFileWriter::TensorFileWriter(std::filesystem::path path, NamedTensors tensors,
                                   const std::map<std::string, std::string>& metadata, Sync sync)
    : tensors_(std::move(tensors)), file_(std::move(path), infos_of(tensors_), metadata, sync) {}

void TensorFileWriter::write(std::size_t first, std::size_t count) {
  std::vector<TensorWrite> writes;
  for (std::size_t i = first; i < first + count; ++i)
    writes.push_back({i, tensors_.at(i).second, tensors_[i].second.scalar_type()});
  write_tensors(writes, all_threads(),
                [this](std::size_t tensor, std::uint64_t offset, std::span<const std::byte> bytes) {
                  file_.write(tensor, offset, bytes);
                });
}

void save_tensors(const std::filesystem::path& file, const NamedTensors& tensors,
                  const std::map<std::string, std::string>& metadata, Sync sync) {
  TensorFileWriter writer(file, tensors, metadata, sync);
  writer.write(0, tensors.size());
  writer.commit();
}

namespace {

const TensorEntry& entry_of_type(const SafetensorsFile& file, const std::string& name,
                                 const Tensor& tensor) {
  const TensorEntry& entry = entry_of(file, name);
  if (entry.dtype != dtype_name(tensor.scalar_type()))
    throw Error(ErrorCode::kInvalidArgument,
                format("{} is {}, where {} is wanted", where_of(file, entry), entry.dtype,
                       dtype_name(tensor.scalar_type())));
  return entry;
}

}  // namespace

void load_tensors(const SafetensorsFile& file, const NamedTensors& tensors) {
  std::vector<TensorRead> reads;
  for (const auto& [name, tensor] : tensors)
    reads.push_back({&file, &entry_of_type(file, name, tensor), tensor});
  read_tensors(reads);
}

void load_slices(const SafetensorsFile& file, const std::vector<NamedSlice>& slices) {
  std::vector<Tensor> targets;
  std::vector<const TensorEntry*> entries;
  std::vector<TensorCheck> checks;
  std::vector<TensorPiece> pieces;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const NamedSlice& slice = slices[i];
    targets.push_back(slice.target);
    entries.push_back(&entry_of_type(file, slice.name, slice.target));
    check_tensor(file, *entries[i], {slice.elements}, slice.target.scalar_type());
    checks.emplace_back(file, *entries[i]);
    cut_pieces(i, static_cast<std::uint64_t>(slice.elements), width_of(slice.target.scalar_type()),
               pieces);
  }
  for_each_piece(
      targets, pieces, all_threads(),
      [&](const TensorPiece& piece, PieceBuffer& raw, PieceBuffer&) {
        const NamedSlice& slice = slices[piece.tensor];
        const Tensor& target = targets[piece.tensor];
        const std::uint64_t width = width_of(target.scalar_type());
        std::byte* const from = raw.of(piece.count * width);
        file.read(*entries[piece.tensor], piece.first * width, {from, piece.count * width});
        checks[piece.tensor].add(piece.first * width, {from, piece.count * width});
        const auto begin = static_cast<std::int64_t>(piece.first);
        const std::int64_t first = std::max(begin, slice.first);
        const std::int64_t end =
            std::min(begin + static_cast<std::int64_t>(piece.count), slice.first + target.numel());
        if (first >= end) return;
        const auto before = static_cast<std::uint64_t>(first - begin) * width;
        const auto count = static_cast<std::uint64_t>(end - first);
        target.narrow(0, first - slice.first, end - first)
            .copy_(host_view(from + before, count, target.scalar_type()));
      });
  for (const TensorCheck& check : checks) check.finish();
}

}  // namespace neap::weights
