#include "reward/worker_environment.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <string_view>

#include "base/format.h"

extern char** environ;

namespace neap::reward {
namespace {

// Variables for the paths of programs, libraries and caches, text encoding, and devices.
// docs/rewards.md has the list.
constexpr std::array<std::string_view, 36> kUsual = {"PATH",
                                                     "HOME",
                                                     "USER",
                                                     "LOGNAME",
                                                     "SHELL",
                                                     "TERM",
                                                     "LANG",
                                                     "LANGUAGE",
                                                     "LC_*",
                                                     "TZ",
                                                     "TMPDIR",
                                                     "LD_LIBRARY_PATH",
                                                     "PYTHONPATH",
                                                     "PYTHONHOME",
                                                     "PYTHONUSERBASE",
                                                     "PYTHONNOUSERSITE",
                                                     "PYTHONSAFEPATH",
                                                     "PYTHONDONTWRITEBYTECODE",
                                                     "VIRTUAL_ENV",
                                                     "CONDA_PREFIX",
                                                     "CONDA_DEFAULT_ENV",
                                                     "CUDA_*",
                                                     "NVIDIA_*",
                                                     "OMP_*",
                                                     "MKL_*",
                                                     "OPENBLAS_*",
                                                     "XDG_CACHE_HOME",
                                                     "XDG_CONFIG_HOME",
                                                     "XDG_DATA_HOME",
                                                     "XDG_RUNTIME_DIR",
                                                     "HF_HOME",
                                                     "HF_HUB_CACHE",
                                                     "HF_HUB_OFFLINE",
                                                     "SSL_CERT_FILE",
                                                     "SSL_CERT_DIR",
                                                     "TORCH_HOME"};

using Variables = std::map<std::string, std::string, std::less<>>;

Variables own_variables() {
  Variables out;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    if (const auto equals = entry.find('='); equals != std::string_view::npos)
      out.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return out;
}

// Copies the variables that `wanted` names. False if there are none.
bool take(std::string_view wanted, const Variables& from, Variables& to) {
  if (!wanted.ends_with('*')) {
    const auto at = from.find(wanted);
    if (at == from.end()) return false;
    to[at->first] = at->second;
    return true;
  }
  wanted.remove_suffix(1);
  for (const auto& [name, value] : from)
    if (name.starts_with(wanted)) to[name] = value;
  return true;
}

}  // namespace

Result<std::vector<std::string>> worker_environment(const std::vector<std::string>& more) {
  const Variables own = own_variables();
  Variables taken;
  for (const std::string_view name : kUsual) (void)take(name, own, taken);
  for (const std::string& entry : more) {
    if (const auto equals = entry.find('='); equals != std::string::npos && equals > 0) {
      taken[entry.substr(0, equals)] = entry.substr(equals + 1);
    } else if (entry.empty() || equals == 0 || !take(entry, own, taken)) {
      return Status(ErrorCode::kInvalidArgument,
                    format("env names the environment variable \"{}\", which is not set", entry));
    }
  }
  std::vector<std::string> out;
  for (const auto& [name, value] : taken) out.push_back(format("{}={}", name, value));
  return out;
}

}  // namespace neap::reward
