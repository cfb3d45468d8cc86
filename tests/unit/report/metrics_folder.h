// What a run's folder of metrics holds.
#pragma once

#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "report/metrics.h"

namespace neap::report {

inline std::string contents_of(const std::filesystem::path& path) {
  auto contents = read_file(path);
  EXPECT_TRUE(contents.ok()) << contents.status().message();
  return contents.ok() ? contents.value() : std::string();
}

inline void append_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary | std::ios::app) << text;
}

inline std::vector<std::uint64_t> steps_of(const std::filesystem::path& path) {
  std::vector<std::uint64_t> steps;
  auto lines = StepLog::read(path);
  EXPECT_TRUE(lines.ok()) << lines.status().message();
  if (lines.ok()) {
    for (const Json& line : *lines) steps.push_back(line["step"].get<std::uint64_t>());
  }
  return steps;
}

inline MetricsLogger open_quietly(const std::filesystem::path& folder,
                                  std::optional<std::int64_t> resume_step = std::nullopt) {
  MetricsOptions options;
  options.folder = folder;
  options.console = false;
  options.resume_step = resume_step;
  auto logger = MetricsLogger::open(options);
  EXPECT_TRUE(logger.ok()) << logger.status().message();
  return std::move(logger).value();
}

}  // namespace neap::report
