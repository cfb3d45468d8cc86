// The table "bytes per parameter" of docs/training.md is what OptimizerSpec says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/format.h"
#include "spec/job/job.h"
#include "spec/job/optimizer.h"

namespace neap::spec {
namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> out;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) out.push_back(part);
  return out;
}

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

// Of one large matrix, where vectors and padding do not count.
std::vector<std::string> cells_of(const OptimizerSpec& spec) {
  FlatUnit unit;
  unit.parameters = {{.name = "w", .shape = {4096, 4096}, .spread = {}}};
  unit.elements = std::int64_t{4096} * 4096;
  const auto each = [&](Bytes bytes) {
    return static_cast<double>(bytes.count()) / static_cast<double>(unit.elements);
  };
  const double master = spec.has_master() ? each(tensor_bytes(unit.elements, spec.master)) : 0;
  const std::vector<double> numbers = {each(tensor_bytes(unit.elements, spec.weights)),
                                       each(spec.gradient_bytes(unit)),
                                       each(spec.state(unit).bytes()) - master, master};
  std::vector<std::string> out;
  double sum = 0;
  for (const double number : numbers) {
    sum += number;
    const bool small = number > 0 && number < 0.01;
    out.push_back(small ? format("{:.3f}", number) : format("{:.0f}", number));
  }
  out.push_back(format("{:.0f}", sum));
  return out;
}

TEST(OptimizerDocs, BytesPerParameterAreThoseOfTheSpec) {
  const std::string page = value_or_throw(read_file(NEAP_SOURCE_DIR "/docs/training.md", 1_MiB));
  const std::size_t start = page.find("| settings of `optim` |");
  ASSERT_NE(start, std::string::npos);
  std::vector<std::string> seen;
  const std::vector<std::string> lines =
      split(page.substr(start, page.find("\n\n", start) - start), '\n');
  for (std::size_t i = 2; i < lines.size(); ++i) {
    std::vector<std::string> cells = split(lines[i].substr(1), '|');
    for (std::string& cell : cells) cell = trimmed(cell);
    ASSERT_EQ(cells.size(), 6U) << lines[i];
    Job job;
    ConfigTable table = job.bind();
    Dtype weights = Dtype::kBfloat16;
    for (const std::string& setting : split(cells[0], ',')) {
      std::string text = trimmed(setting);
      text = text.substr(1, text.size() - 2);  // without the backticks
      if (text == "device.dtype = \"float32\"") {
        weights = Dtype::kFloat32;
      } else {
        text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
        EXPECT_TRUE(table.apply_override("actor_rollout_ref.actor.optim." + text).ok()) << text;
      }
    }
    const Result<OptimizerSpec> spec = OptimizerSpec::of(job.actor.optim, weights);
    ASSERT_TRUE(spec.ok()) << lines[i] << spec.status().message();
    cells.erase(cells.begin());
    EXPECT_EQ(cells, cells_of(*spec)) << lines[i];
    seen.push_back(job.actor.optim.kind);
  }
  for (const std::string& name : optimizer_names())
    EXPECT_THAT(seen, ::testing::Contains(name)) << "is not in the table";
}

}  // namespace
}  // namespace neap::spec
