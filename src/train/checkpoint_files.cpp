#include "train/checkpoint_files.h"

#include <string>
#include <system_error>

#include "base/file.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/status.h"
#include "weights/safetensors.h"

namespace neap::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kChecksumsFile = "checksums.json";
constexpr const char *kBytes = "bytes", *kHash = "xxh3";

bool has_tensors(const fs::path& file) {
  return file.extension() == ".safetensors";
}

Error damaged(const fs::path& checkpoint, const std::string& what) {
  return {ErrorCode::kCorrupt,
          format("{} is not what was saved: {}. Where it was edited on purpose, remove {}",
                 checkpoint.string(), what, (checkpoint / kChecksumsFile).string())};
}

std::string hash_of_contents(const fs::path& file) {
  return hash_of(value_or_throw(read_file(file, 1_GiB)));
}

}  // namespace

void write_checksums(const fs::path& checkpoint) {
  Json files = Json::object();
  std::error_code error;
  for (fs::recursive_directory_iterator it(checkpoint, error), end; !error && it != end;
       it.increment(error)) {
    if (!it->is_regular_file()) continue;
    Json entry = {{kBytes, it->file_size()}};
    if (!has_tensors(it->path())) entry[kHash] = hash_of_contents(it->path());
    files[it->path().lexically_relative(checkpoint).string()] = std::move(entry);
  }
  if (error)
    throw Error(ErrorCode::kIo, format("Cannot list {}: {}", checkpoint.string(), error.message()));
  const Json all = {{"schema", 1}, {"files", std::move(files)}};
  throw_if_error(write_file_atomic(checkpoint / kChecksumsFile, json_text(all, 1) + "\n"));
}

void check_files(const fs::path& checkpoint, const weights::OpenFolders& folders) {
  std::error_code error;
  if (!fs::exists(checkpoint / kChecksumsFile, error)) return;
  const Json all = value_or_throw(
      parse_json(value_or_throw(read_file(checkpoint / kChecksumsFile, read_limits::kRunState)),
                 (checkpoint / kChecksumsFile).string()));
  const Json files = all.is_object() ? all.value("files", Json()) : Json();
  if (!files.is_object()) throw damaged(checkpoint, format("{} lists no files", kChecksumsFile));
  for (const auto& [name, entry] : files.items()) {
    const fs::path file = checkpoint / name;
    const std::uintmax_t bytes = fs::file_size(file, error);
    if (error) throw damaged(checkpoint, format("{} is missing: {}", name, error.message()));
    if (!entry.is_object() || entry.value(kBytes, Json()) != Json(bytes))
      throw damaged(checkpoint, format("{} has {} bytes", name, bytes));
    if (!has_tensors(file)) {
      if (entry.value(kHash, Json()) != Json(hash_of_contents(file)))
        throw damaged(checkpoint, format("{} has other contents", name));
    } else if (folders.file(file).checksums() != weights::SafetensorsFile::Checksums::kValid) {
      throw damaged(checkpoint, format("the header of {} has other contents", name));
    }
  }
}

}  // namespace neap::train
