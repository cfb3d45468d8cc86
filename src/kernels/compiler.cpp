#include "kernels/compiler.h"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/format.h"
#include "base/symbols.h"

namespace neap::kernels {
namespace {

namespace fs = std::filesystem;
using Program = void*;

// name, exported symbol, parameters; results are nvrtcResult as int
#define NEAP_NVRTC_FUNCTIONS(X)                                                               \
  X(version, "nvrtcVersion", (int* major, int* minor))                                        \
  X(create, "nvrtcCreateProgram",                                                             \
    (Program * program, const char* source, const char* name, int headers,                    \
     const char* const* header_texts, const char* const* header_names))                       \
  X(destroy, "nvrtcDestroyProgram", (Program * program))                                      \
  X(compile, "nvrtcCompileProgram", (Program program, int count, const char* const* options)) \
  X(log_size, "nvrtcGetProgramLogSize", (Program program, std::size_t * size))                \
  X(log, "nvrtcGetProgramLog", (Program program, char* log))                                  \
  X(cubin_size, "nvrtcGetCUBINSize", (Program program, std::size_t * size))                   \
  X(cubin, "nvrtcGetCUBIN", (Program program, char* cubin))

struct Nvrtc {
#define NEAP_DECLARE(name, symbol, parameters) int(*name) parameters = nullptr;
  NEAP_NVRTC_FUNCTIONS(NEAP_DECLARE)
#undef NEAP_DECLARE
};

class NvrtcCompiler final : public Compiler {
 public:
  NvrtcCompiler(const Nvrtc& nvrtc, std::string version)
      : nvrtc_(nvrtc), version_(std::move(version)) {}

  [[nodiscard]] std::string version() const override { return version_; }
  [[nodiscard]] Result<std::string> compile(const Source& source, int architecture) const override {
    const std::string text(source.text);
    const std::string file = format("{}.cu", source.name);
    Program program = nullptr;
    if (nvrtc_.create(&program, text.c_str(), file.c_str(), 0, nullptr, nullptr) != 0)
      return Status(ErrorCode::kInternal, format("NVRTC {} takes no program", version_));
    Result<std::string> cubin = compile(program, file, architecture);
    (void)nvrtc_.destroy(&program);
    return cubin;
  }

 private:
  [[nodiscard]] Result<std::string> compile(Program program, const std::string& file,
                                            int architecture) const {
    const std::string card = "--gpu-architecture=" + target_of(architecture);
    const std::array options{card.c_str(), "--std=c++17"};
    const int result = nvrtc_.compile(program, static_cast<int>(options.size()), options.data());
    if (result != 0)
      return Status(ErrorCode::kInternal,
                    format("NVRTC {} cannot compile {} for sm_{} (error {}):\n{}", version_, file,
                           architecture, result, log_of(program)));
    std::size_t size = 0;
    std::string cubin;
    if (nvrtc_.cubin_size(program, &size) == 0) cubin.resize(size);
    if (cubin.empty() || nvrtc_.cubin(program, cubin.data()) != 0)
      return Status(ErrorCode::kInternal,
                    format("NVRTC {} made no cubin of {} for sm_{}", version_, file, architecture));
    return cubin;
  }
  [[nodiscard]] std::string log_of(Program program) const {
    std::size_t size = 0;
    std::string log;
    if (nvrtc_.log_size(program, &size) == 0) log.resize(size);
    if (log.empty() || nvrtc_.log(program, log.data()) != 0) return "no log";
    return log.c_str();
  }

  Nvrtc nvrtc_;
  std::string version_;
};

/// The library folder of libtorch's wheel; empty if libtorch is not loaded.
fs::path libtorch_folder() {
  void* const torch = ::dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  link_map* where = nullptr;
  if (torch == nullptr || ::dlinfo(torch, RTLD_DI_LINKMAP, &where) != 0) return {};
  return fs::path(where->l_name).parent_path();
}

std::vector<std::string> places() {
  if (const char* wanted = std::getenv("NEAP_LIBNVRTC"); wanted != nullptr && *wanted != '\0')
    return {wanted};
  std::vector<std::string> out;
  const fs::path torch = libtorch_folder();
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12"}) {
    out.emplace_back(name);
    if (torch.empty()) continue;
    const fs::path wheels = torch / ".." / ".." / "nvidia";
    for (const fs::path& folder : {torch, wheels / "cu13" / "lib", wheels / "cuda_nvrtc" / "lib"})
      out.push_back(folder / name);
  }
  return out;
}

}  // namespace

std::string target_of(int architecture) {
  return format("sm_{}{}", architecture, architecture == kWarpGroupArchitecture ? "a" : "");
}

Result<const Compiler*> open_compiler(const std::vector<std::string>& places) {
  void* library = nullptr;
  std::string reason;
  for (const std::string& place : places) {
    library = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    if (reason.empty()) reason = ::dlerror();
  }
  if (library == nullptr)
    return Status(ErrorCode::kUnsupported, format("NVRTC does not load: {}", reason));
  Nvrtc nvrtc;
  Symbols symbols(library);
#define NEAP_LOAD(name, symbol, parameters) symbols.find(nvrtc.name, symbol);
  NEAP_NVRTC_FUNCTIONS(NEAP_LOAD)
#undef NEAP_LOAD
  if (symbols.missing() != nullptr)
    return Status(ErrorCode::kUnsupported, format("NVRTC has no {}: too old", symbols.missing()));
  int major = 0, minor = 0;
  if (nvrtc.version(&major, &minor) != 0)
    return Status(ErrorCode::kUnsupported, "NVRTC does not say its version");
  return new NvrtcCompiler(nvrtc, format("{}.{}", major, minor));
}

Result<const Compiler*> load_compiler() {
  static const Result<const Compiler*> kCompiler = open_compiler(places());
  return kCompiler;
}

}  // namespace neap::kernels
