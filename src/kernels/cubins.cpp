#include "kernels/cubins.h"

#include <system_error>

#include "base/file.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/log.h"

namespace neap::kernels {
namespace {

namespace fs = std::filesystem;

// Empty if the file is missing or damaged.
std::string read_cubin(const fs::path& path) {
  Result<std::string> file = read_file(path, 64_MiB);
  if (!file.ok() || file->size() <= kHashDigits) return {};
  std::string cubin = file->substr(kHashDigits);
  return file->compare(0, kHashDigits, hash_of(cubin)) == 0 ? cubin : std::string();
}

void write_cubin(const fs::path& path, const std::string& cubin) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (const Status written = write_file_atomic(path, hash_of(cubin) + cubin); !written.ok())
    log::debug(format("Compiled kernels are not kept: {}", written.message()));
}

}  // namespace

Result<std::string> cubin_of(const Compiler& compiler, const Source& source, int architecture,
                             int driver, const fs::path& folder) {
  if (folder.empty()) return compiler.compile(source, architecture);
  const std::string key = format("{}\n{}\n{}\n{}\n{}", source.name, compiler.version(),
                                 target_of(architecture), driver, source.text);
  const fs::path path = folder / format("{}-{}.cubin", source.name, hash_of(key));
  std::string kept = read_cubin(path);
  if (!kept.empty()) return kept;
  NEAP_TRY_ASSIGN(std::string cubin, compiler.compile(source, architecture));
  write_cubin(path, cubin);
  return cubin;
}

fs::path cubin_folder() {
  const auto cache = user_cache_folder();
  return cache.ok() ? *cache / "kernels" : fs::path();
}

}  // namespace neap::kernels
