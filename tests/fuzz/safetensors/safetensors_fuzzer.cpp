// Any bytes as a safetensors file, or as the index of a folder with one good shard: refused with one error, or every tensor
// lies within its file and can be read. The first byte of the input chooses: 'i' for an index.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "weights/safetensors.h"

namespace {

namespace fs = std::filesystem;
using neap::weights::SafetensorsFile;
using neap::weights::TensorEntry;
using neap::weights::WeightFolder;

void require(bool holds) {
  if (!holds) std::abort();
}

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "neap-fuzz-XXXXXX").string();
    require(::mkdtemp(name.data()) != nullptr);
    path_ = name;
    const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    std::string shard(8, '\0');
    shard[0] = static_cast<char>(header.size());
    write("shard.safetensors", shard + header + "1234");
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  fs::path write(const char* name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary | std::ios::trunc) << bytes;
    return path_ / name;
  }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void read_all(const SafetensorsFile& file, std::uint64_t size) {
  std::vector<std::byte> bytes;
  for (const TensorEntry& tensor : file.tensors()) {
    require(tensor.begin <= tensor.end && tensor.end <= size);
    require(file.find(tensor.name) != nullptr);
    bytes.resize(tensor.bytes());
    file.read(tensor, 0, bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    if (input.starts_with('i')) {
      (void)folder.write("model.safetensors.index.json", input.substr(1));
      const WeightFolder weights = WeightFolder::open(folder.path());
      for (const std::string& name : weights.names()) require(bool(weights.find(name)));
    } else {
      const std::string_view bytes = input.substr(std::min<std::size_t>(size, 1));
      read_all(SafetensorsFile::open(folder.write("one.safetensors", bytes)), bytes.size());
    }
  } catch (const neap::Error& e) {
    require(std::string_view(e.what()).find(folder.path().native()) != std::string_view::npos);
    require(std::string_view(e.what()).size() < 4096);
  }
  return 0;
}
