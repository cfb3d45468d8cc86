#include "weights/open_folders.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/descriptor.h"
#include "base/file.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/open_file.h"
#include "base/status.h"
#include "weights/safetensors_detail.h"

namespace neap::weights {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kBeginning = 1 << 20, kSample = 4096, kSamples = 32;

void add_part(RunningHash& hash, int fd, const fs::path& file, std::uint64_t first,
              std::uint64_t size) {
  std::string part(size, '\0');
  detail::read_exactly(fd, file, first, std::as_writable_bytes(std::span(part)));
  hash.add(part);
}

void add_file(RunningHash& hash, const fs::path& file, int fd) {
  struct ::stat facts {};
  if (::fstat(fd, &facts) != 0)
    throw Error(ErrorCode::kIo, format("{}: {}", file.string(), std::strerror(errno)));
  const auto size = static_cast<std::uint64_t>(facts.st_size);
  hash.add(format("{} {}\n", file.filename().string(), size));
  const std::uint64_t beginning = std::min(size, kBeginning);
  add_part(hash, fd, file, 0, beginning);
  const std::uint64_t rest = size - beginning;
  const std::uint64_t sample = std::min(rest, kSample);
  for (std::uint64_t i = 0; i < kSamples && rest > 0; ++i)
    add_part(hash, fd, file, beginning + (rest - sample) / (kSamples - 1) * i, sample);
}

void add_file(RunningHash& hash, const SafetensorsFile& file) {
  add_file(hash, file.path(), file.descriptor());
}

void add_file(RunningHash& hash, const fs::path& file) {
  add_file(hash, file, value_or_throw(open_regular_file(file)).get());
}

}  // namespace

struct OpenFolders::State {
  std::mutex mutex;
  std::map<fs::path, std::shared_ptr<const WeightFolder>> weights;
  std::map<fs::path, SafetensorsFile> files;
  std::map<std::pair<fs::path, fs::path>, std::string> fingerprints;

  /// Call it with the mutex locked.
  SafetensorsFile file(const fs::path& path) {
    const auto known = files.find(path);
    if (known == files.end()) return files.emplace(path, SafetensorsFile::open(path)).first->second;
    known->second.check_unchanged();
    return known->second;
  }
};

OpenFolders::OpenFolders() : state_(std::make_shared<State>()) {}

std::shared_ptr<const WeightFolder> OpenFolders::weights(const fs::path& folder) const {
  const std::lock_guard lock(state_->mutex);
  std::shared_ptr<const WeightFolder>& open = state_->weights[folder];
  if (open == nullptr) {
    open = std::make_shared<const WeightFolder>(
        WeightFolder::open(folder, [&](const fs::path& path) { return state_->file(path); }));
  } else {
    for (const SafetensorsFile& file : open->files()) file.check_unchanged();
  }
  return open;
}

SafetensorsFile OpenFolders::file(const fs::path& path) const {
  const std::lock_guard lock(state_->mutex);
  return state_->file(path);
}

SafetensorsFile OpenFolders::adapter(const fs::path& folder) const {
  return file(folder / spec::kAdapterWeights);
}

void OpenFolders::close() const {
  const std::lock_guard lock(state_->mutex);
  state_->weights.clear();
  state_->files.clear();
  state_->fingerprints.clear();
}

std::string OpenFolders::fingerprint(const spec::ModelFiles& files) const {
  const std::pair key(files.base, files.adapter);
  {
    const std::lock_guard lock(state_->mutex);
    const auto known = state_->fingerprints.find(key);
    if (known != state_->fingerprints.end()) return known->second;
  }
  RunningHash hash;
  hash.add(value_or_throw(read_file(files.base / "config.json", read_limits::kModelJson)));
  if (spec::has_weights(files.base)) {
    const std::shared_ptr<const WeightFolder> folder = weights(files.base);
    if (const auto index = folder->index()) add_file(hash, *index);
    for (const SafetensorsFile& file : folder->files()) add_file(hash, file);
  }
  if (!files.adapter.empty()) {
    add_file(hash, files.adapter / spec::kAdapterConfig);
    add_file(hash, adapter(files.adapter));
  }
  const std::lock_guard lock(state_->mutex);
  return state_->fingerprints[key] = hash.text();
}

void OpenFolders::check_base(const spec::ModelFiles& files) const {
  if (files.adapter.empty() || !spec::has_weights(files.base)) return;
  const SafetensorsFile trained = adapter(files.adapter);
  const auto trained_on = trained.metadata().find(kBaseKey);
  if (trained_on == trained.metadata().end() || trained_on->second == fingerprint({files.base, {}}))
    return;
  const std::string text = format("{} was trained on another base: {} has other contents than then",
                                  files.adapter.string(), files.base.string());
  const char* allowed = std::getenv(kOtherBaseVariable);
  if (allowed == nullptr || std::string_view(allowed) != "allow") {
    throw Error(ErrorCode::kInvalidArgument,
                format("{}. Restore the base, or set the environment variable {}=allow to use the "
                       "adapter all the same",
                       text, kOtherBaseVariable));
  }
  log::warn(text);
}

}  // namespace neap::weights
