#include "cli/trainer_library.h"

#include <dlfcn.h>
#include <link.h>
#include <poll.h>

#include <cstdlib>
#include <utility>

#include "base/file.h"
#include "base/format.h"
#include "base/installation.h"
#include "base/python.h"
#include "cli/torch_versions.h"

namespace neap::cli {
namespace {

namespace fs = std::filesystem;

std::string how_to_get_torch() {
  return format(
      "Install it for the python3 on PATH (pip install torch=={}), or set NEAP_TORCH_ROOT to a "
      "folder that holds torch/, or build Neap with your torch (docs/start.md)",
      kTorchVersion);
}

Status unsupported(std::string message) {
  return {ErrorCode::kUnsupported, std::move(message)};
}

/// The folder that contains torch/ for the torch that python3 would import; empty if none.
fs::path root_of_python() {
  // Find the module without importing it, which would take seconds.
  constexpr std::string_view kAsk =
      "import importlib.util as u; s = u.find_spec('torch'); "
      "print(s.submodule_search_locations[0] if s else '')";
  auto python = ChildProcess::start(python_program(kAsk, {}));
  if (!python.ok()) return {};
  std::string text;
  Status more;
  while (more.ok()) {
    pollfd out{(*python)->out(), POLLIN, 0};
    (void)::poll(&out, 1, -1);
    more = (*python)->read(text);
  }
  text = text.substr(0, text.find('\n'));
  return text.empty() ? fs::path() : fs::path(text).parent_path();
}

/// Fails if torch/ under `root` is not the version that the trainer was built with.
Status check_version(const fs::path& root) {
  const fs::path file = root / "torch" / "version.py";
  const auto text = read_file(file, Bytes(1U << 20));
  if (!text.ok())
    return unsupported(
        format("{} holds no torch: {} cannot be read", root.string(), file.string()));
  constexpr std::string_view kMark = "__version__ = '";
  const std::size_t at = text->find(kMark);
  const std::string version =
      at == std::string::npos
          ? "unknown"
          : text->substr(at + kMark.size(),
                         text->find('\'', at + kMark.size()) - at - kMark.size());
  if (minor_version(version) != minor_version(kTorchVersion))
    return unsupported(format("The trainer is built with libtorch {}; torch in {} is {}. {}",
                              kTorchVersion, root.string(), version, how_to_get_torch()));
  return {};
}

/// Set while libgomp loads. Its threads then spin for microseconds instead of a millisecond before
/// they sleep. If other processes use the cores, spinning threads delay the processes that they
/// wait for. Programs that the trainer starts do not inherit the variable.
class BriefSpinning {
 public:
  BriefSpinning()
      : ours_(std::getenv("OMP_WAIT_POLICY") == nullptr && std::getenv(kVariable) == nullptr &&
              ::setenv(kVariable, "1000", 0) == 0) {}
  ~BriefSpinning() {
    if (ours_) ::unsetenv(kVariable);
  }
  BriefSpinning(const BriefSpinning&) = delete;
  BriefSpinning& operator=(const BriefSpinning&) = delete;

 private:
  static constexpr const char* kVariable = "GOMP_SPINCOUNT";
  bool ours_;
};

/// RTLD_GLOBAL, because libtorch's libraries need each other's symbols.
Status load_libtorch(const fs::path& root) {
  NEAP_TRY(check_version(root));
  const fs::path file = root / "torch" / "lib" / "libtorch_cpu.so";
  if (::dlopen(file.c_str(), RTLD_LAZY | RTLD_GLOBAL) == nullptr)
    return unsupported(format("libtorch does not load: {}", ::dlerror()));
  return {};
}

/// Null if it does not load; dlerror() says why.
void* open_trainer(const fs::path& file) {
  return ::dlopen(file.c_str(), RTLD_LAZY | RTLD_GLOBAL);
}

Result<void*> open_with_libtorch(const fs::path& file) {
  const char* root = std::getenv("NEAP_TORCH_ROOT");
  if (root != nullptr && *root != '\0') {
    NEAP_TRY(load_libtorch(root).with_context("loading the libtorch of NEAP_TORCH_ROOT"));
  } else if (void* library = open_trainer(file); library != nullptr) {
    return library;
  } else {
    const std::string reason = ::dlerror();
    if (reason.find("libtorch_cpu.so") == std::string::npos)
      return unsupported(format("The trainer does not load: {}", reason));
    const fs::path found = root_of_python();
    if (found.empty())
      return unsupported(format("The trainer needs libtorch {}, which was not found. {}",
                                kTorchVersion, how_to_get_torch()));
    NEAP_TRY(load_libtorch(found).with_context("loading the libtorch of python3"));
  }
  if (void* library = open_trainer(file); library != nullptr) return library;
  return unsupported(format("The trainer does not load: {}", ::dlerror()));
}

}  // namespace

Result<Trainer> load_trainer() {
  auto file = find_library(kTrainerLibrary, kTrainerLibraryVariable);
  if (!file.ok()) {
    return unsupported(
        format("This installation has no trainer (neap train, neap generate, neap eval, neap "
               "merge): {}. From "
               "a checkout, "
               "\"make package\" builds one with it, as does NEAP_TORCH_ROOT=$(scripts/setup) pip "
               "install ./python",
               file.status().message()));
  }
  Trainer trainer;
  trainer.library = std::move(*file);
  const BriefSpinning brief;
  NEAP_TRY_ASSIGN(void* const library, open_with_libtorch(trainer.library));
  trainer.main = reinterpret_cast<NeapTrainerMain>(::dlsym(library, NEAP_TRAINER_MAIN));
  trainer.facts = reinterpret_cast<NeapTrainerFacts>(::dlsym(library, NEAP_TRAINER_FACTS));
  if (trainer.main == nullptr || trainer.facts == nullptr)
    return unsupported(format("{} is not Neap's trainer, or of another version: it lacks {} or {}",
                              trainer.library.string(), NEAP_TRAINER_MAIN, NEAP_TRAINER_FACTS));
  // Opening by name finds the library that is already loaded.
  if (void* torch = ::dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD); torch != nullptr) {
    link_map* where = nullptr;
    if (::dlinfo(torch, RTLD_DI_LINKMAP, &where) == 0) trainer.libtorch = where->l_name;
  }
  return trainer;
}

}  // namespace neap::cli
