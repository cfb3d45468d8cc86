// The published numbers of examples/plan: the formulas give them, or the file says why not. What the
// formulas and plans give is in examples.txt; NEAP_UPDATE_GOLDEN=1 writes it anew.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/file.h"
#include "base/format.h"
#include "formulas/case_file.h"
#include "golden/compare_file.h"

namespace neap::formulas {
namespace {

using testing::compare_file;

const std::filesystem::path kExamples =
    std::filesystem::path(NEAP_SOURCE_DIR) / "examples" / "plan";
const std::filesystem::path kExpected =
    std::filesystem::path(NEAP_SOURCE_DIR) / "tests" / "golden" / "formulas" / "examples.txt";

std::vector<std::filesystem::path> examples() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(kExamples))
    if (entry.path().extension() == ".toml") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

Sheet sheet_of(const CaseFile& file, const Case& of) {
  spec::Job job;
  const Status loaded = load_case(file, of, job);
  EXPECT_TRUE(loaded.ok()) << loaded.message();
  EXPECT_TRUE(job.warnings.empty()) << job.warnings.front();
  plan::Target target;
  target.cuda = true;
  const Result<JobSizes> sizes = read_sizes(job, target);
  EXPECT_TRUE(sizes.ok()) << sizes.status().message();
  Result<Sheet> sheet = make_sheet(*sizes, of.degrees);
  EXPECT_TRUE(sheet.ok()) << sheet.status().message();
  const Status added = add_published(file, of, *sheet);
  EXPECT_TRUE(added.ok()) << added.message();
  return std::move(sheet).value();
}

void check_published(const Case& of, const Sheet& sheet, double unit) {
  std::size_t published = 0;
  for (const Section& section : sheet.sections) {
    for (const Line& line : section.lines) {
      if (line.counted) {
        EXPECT_EQ(line.why.empty(), !differs(line.value, *line.counted)) << line.id;
      }
      if (!line.published) continue;
      ++published;
      // An explanation where the values differ, and none where they agree.
      EXPECT_EQ(line.published->why.empty(), line.published->agrees(line.value))
          << line.id << ": published " << line.published->value << ", formula " << line.value;
    }
  }
  EXPECT_EQ(published, of.published.size());
  if (of.device > 0) {
    EXPECT_EQ(sheet.find("rank.total")->value <= of.device * unit, of.fits);
  }
}

TEST(FormulasGolden, ExamplesHaveThePublishedNumbers) {
  std::string text;
  for (const std::filesystem::path& path : examples()) {
    SCOPED_TRACE(path.string());
    const Result<CaseFile> file = read_cases(path);
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_FALSE(file->source.empty());
    for (const Case& of : file->cases) {
      SCOPED_TRACE(of.name);
      const Sheet sheet = sheet_of(*file, of);
      check_published(of, sheet, file->scale == Scale::kGib ? 1024.0 * 1024 * 1024 : 1e9);
      text += format("{}: {}\n", path.filename().string(), of.name);
      for (const Section& section : sheet.sections) {
        for (const Line& line : section.lines) {
          if (line.id.rfind("rank.", 0) != 0 && !line.published) continue;
          text += format("  {}: {:.10g}", line.id, line.value);
          // Temporaries are tests/golden/plan's.
          if (line.counted && line.id != "rank.total")
            text += format(", counted {:.0f}", *line.counted);
          if (line.published) text += format(", published {:.6g}", line.published->value);
          text += "\n";
        }
      }
    }
  }
  compare_file(kExpected, text);
}

// What stands between <!-- zero: ... --> and <!-- /zero --> in docs/formulas.md.
TEST(FormulasGolden, TheCommittedTableIsTheFormulas) {
  const Result<CaseFile> file = read_cases(kExamples / "zero-1b.toml");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const StatesByRanks table = sheet_of(*file, file->cases[0]).by_ranks;
  std::vector<std::size_t> shown;
  std::string head = "| d = |", rule = "|---|", text;
  for (const std::int64_t ranks : {1, 2, 8, 64, 1024}) {
    const auto at = std::find(table.ranks.begin(), table.ranks.end(), ranks);
    ASSERT_NE(at, table.ranks.end());
    shown.push_back(static_cast<std::size_t>(at - table.ranks.begin()));
    head += format(" {} |", ranks);
    rule += "---|";
  }
  for (const StatesByRanks::Row& row : table.rows) {
    text += format("| {} | ", row.term);
    for (const std::size_t at : shown) text += format("{:.3g} | ", row.bytes[at] / 1e9);
    text.back() = '\n';
  }
  const std::filesystem::path page =
      std::filesystem::path(NEAP_SOURCE_DIR) / "docs" / "formulas.md";
  const Result<std::string> whole = read_file(page);
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  const std::size_t mark = whole->find("<!-- zero:"), end = whole->find("<!-- /zero -->");
  ASSERT_NE(mark, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  compare_file(page, whole->substr(0, whole->find('\n', mark) + 1) + head + "\n" + rule + "\n" +
                         text + whole->substr(end));
}

// The numbers that the sources print, apart from the files: no edit of a file loses one.
TEST(FormulasGolden, ExamplesHoldTheSourcesNumbers) {
  const auto published = [](const char* name, const char* which, const char* term) -> double {
    const Result<CaseFile> file = read_cases(kExamples / name);
    for (const Case& of : file->cases)
      for (const PublishedTerm& value : of.published)
        if (of.name == which && value.term == term) return value.value;
    return -1;
  };
  EXPECT_EQ(published("gpt3-175b.toml", "batch 1", "mixed_weights"), 1050);
  EXPECT_EQ(published("gpt3-175b.toml", "batch 1", "mixed_moments"), 1400);
  EXPECT_EQ(published("gpt3-175b.toml", "batch 1", "activations"), 275);
  EXPECT_EQ(published("gpt3-175b.toml", "batch 64", "activations"), 17600);
  EXPECT_EQ(published("gpt3-175b.toml", "batch 128", "activations"), 35300);
  struct Row {
    const char* name;
    double weights, gradients, activations, optimizer, total;
  };
  for (const Row& row :
       {Row{"fp32, one GPU", 26, 26, 60, 53, 167}, Row{"fp16, one GPU", 13, 13, 30, 79, 137},
        Row{"fp32, TP 8", 3.3, 3.3, 12, 6.5, 25.1}, Row{"fp16, TP 8", 1.6, 1.6, 5.4, 9.9, 18.5},
        Row{"fp32, TP 8 x PP 4", 1.2, 1.2, 10.8, 2.4, 15.6},
        Row{"fp16, TP 8 x PP 4", 0.6, 0.6, 5.4, 3.5, 10.1}}) {
    EXPECT_EQ(published("bloom-7b.toml", row.name, "weights"), row.weights);
    EXPECT_EQ(published("bloom-7b.toml", row.name, "gradients"), row.gradients);
    EXPECT_EQ(published("bloom-7b.toml", row.name, "activations"), row.activations);
    EXPECT_EQ(published("bloom-7b.toml", row.name, "optimizer"), row.optimizer);
    EXPECT_EQ(published("bloom-7b.toml", row.name, "total"), row.total);
  }
  for (const auto& [name, value] :
       {std::pair{"None", 18.2}, std::pair{"ZeRO-1", 14.4}, std::pair{"ZeRO-2", 12.8},
        std::pair{"ZeRO-3", 12.0}, std::pair{"Gradient checkpointing", 14.8}})
    EXPECT_EQ(published("opt-1.3b.toml", name, "total"), value);
}

}  // namespace
}  // namespace neap::formulas
