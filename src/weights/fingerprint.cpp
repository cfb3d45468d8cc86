#include "weights/fingerprint.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "base/file.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/open_file.h"
#include "base/status.h"
#include "weights/safetensors.h"
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

void add_file(RunningHash& hash, const fs::path& file) {
  const Descriptor fd = value_or_throw(open_regular_file(file));
  const std::uint64_t size = fs::file_size(file);
  hash.add(format("{} {}\n", file.filename().string(), size));
  const std::uint64_t beginning = std::min(size, kBeginning);
  add_part(hash, fd.get(), file, 0, beginning);
  const std::uint64_t rest = size - beginning;
  const std::uint64_t sample = std::min(rest, kSample);
  for (std::uint64_t i = 0; i < kSamples && rest > 0; ++i)
    add_part(hash, fd.get(), file, beginning + (rest - sample) / (kSamples - 1) * i, sample);
}

}  // namespace

std::string fingerprint(const spec::ModelFiles& files) {
  RunningHash hash;
  hash.add(value_or_throw(read_file(files.base / "config.json", read_limits::kModelJson)));
  if (spec::has_weights(files.base)) {
    for (const fs::path& file : WeightFolder::open(files.base).files()) add_file(hash, file);
  }
  if (!files.adapter.empty()) {
    add_file(hash, files.adapter / spec::kAdapterConfig);
    add_file(hash, files.adapter / spec::kAdapterWeights);
  }
  return hash.text();
}

void check_base(const spec::ModelFiles& files) {
  if (files.adapter.empty() || !spec::has_weights(files.base)) return;
  const SafetensorsFile adapter = SafetensorsFile::open(files.adapter / spec::kAdapterWeights);
  const auto trained_on = adapter.metadata().find(kBaseKey);
  if (trained_on == adapter.metadata().end() || trained_on->second == fingerprint({files.base, {}}))
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
