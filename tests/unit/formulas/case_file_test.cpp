#include "formulas/case_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/file.h"
#include "base/format.h"

namespace neap::formulas {
namespace {

class CaseFiles : public ::testing::Test {
 protected:
  CaseFiles() { std::filesystem::create_directories(folder_ / "model"); }
  ~CaseFiles() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::filesystem::path write(const std::string& text) const {
    std::ofstream(folder_ / "cases.toml") << text;
    std::ofstream(folder_ / "model" / "config.json")
        << R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 96})";
    return folder_ / "cases.toml";
  }
  [[nodiscard]] Sheet sheet_of(const CaseFile& file, const Case& of) const {
    spec::Job job;
    const Status loaded = load_case(file, of, job);
    EXPECT_TRUE(loaded.ok()) << loaded.message();
    plan::Target target;
    target.cuda = true;
    return *make_sheet(*read_sizes(job, target), of.degrees);
  }
  const std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) / format("neap-cases-{}", ::getpid());
};

TEST_F(CaseFiles, CasesHaveSizesDegreesAndPublishedValues) {
  const auto path = write(R"(
source = "a paper"
unit = "GB"
model = "model"
[[cases]]
name = "one"
batch = 3
length = 32
data = 1
[[cases]]
name = "two"
tensor = 2
pipeline = 2
data = 4
zero = 2
sequence_parallel = true
rounded_to = 0.5
device = 0.00001
fits = false
published = { weights = 1.5, approximate = 0.25 }
why = { weights = "a reason" }
)");
  EXPECT_TRUE(*has_cases(path));
  const Result<CaseFile> file = read_cases(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->scale, Scale::kGb);
  ASSERT_EQ(file->cases.size(), 2U);
  Case one = file->cases[0], two = file->cases[1];
  EXPECT_TRUE(one.published.empty());
  EXPECT_EQ(two.degrees.zero, 2);
  EXPECT_TRUE(two.degrees.sequence_parallel);
  EXPECT_FALSE(two.fits);

  EXPECT_NE(sheet_of(*file, one).letters.find("b = 3, s = 32, m = 1 "), std::string::npos);
  Sheet sheet = sheet_of(*file, two);
  // The longest that the model has, and a micro-batch a stage.
  EXPECT_NE(sheet.letters.find("b = 1, s = 96, m = 2 "), std::string::npos) << sheet.letters;
  ASSERT_TRUE(add_published(*file, two, sheet).ok());
  const Line* weights = sheet.find("rank.weights");
  ASSERT_TRUE(weights->published.has_value());
  EXPECT_DOUBLE_EQ(weights->published->value, 1.5e9);
  EXPECT_DOUBLE_EQ(weights->published->rounded_to, 0.5e9);
  EXPECT_EQ(weights->published->why, "a reason");
  EXPECT_DOUBLE_EQ(sheet.find("actor.approximate")->published->value, 0.25e9);
  ASSERT_EQ(sheet.remarks.size(), 1U);
  EXPECT_NE(sheet.remarks[0].find("does not fit"), std::string::npos);
}

TEST_F(CaseFiles, AJobMayReplaceTheModel) {
  const auto job = std::filesystem::path(NEAP_SOURCE_DIR) / "tests/golden/plan/qwen15_sft.toml";
  EXPECT_FALSE(*has_cases(job));
  const Result<CaseFile> file = read_cases(
      write("job = \"" + job.string() + "\"\n[[cases]]\nset = [\"data.max_prompt_length=7\"]\n"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  spec::Job loaded;
  ASSERT_TRUE(load_case(*file, file->cases[0], loaded).ok());
  EXPECT_EQ(loaded.data.max_prompt_length, 7);
}

// What differs has a reason for every architecture that Neap opens; tags of models this small are
// mostly rounding.
TEST_F(CaseFiles, EveryArchitectureHasReasons) {
  std::size_t models = 0;
  const auto folder = std::filesystem::path(NEAP_SOURCE_DIR) / "tests/golden/architectures";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    SCOPED_TRACE(entry.path().filename().string());
    (void)write("");
    const Json golden = Json::parse(*read_file(entry.path()));
    std::ofstream(folder_ / "model" / "config.json") << golden["config"].dump();
    spec::Job job;
    const Status loaded = load_model(folder_ / "model", {2, 16, 1}, {}, job);
    ASSERT_TRUE(loaded.ok()) << loaded.message();
    plan::Target target;
    target.cuda = true;
    const Sheet sheet = *make_sheet(*read_sizes(job, target), {});
    for (const Section& section : sheet.sections)
      for (const Line& line : section.lines)
        if (line.counted) {
          EXPECT_EQ(line.why.empty(), !differs(line.value, *line.counted)) << line.id;
        }
    ++models;
  }
  EXPECT_GE(models, 20U);
}

TEST_F(CaseFiles, MistakesAreNamed) {
  const auto message = [&](const std::string& text) {
    const Result<CaseFile> file = read_cases(write(text));
    return file.ok() ? "" : file.status().message();
  };
  EXPECT_NE(message("source = \"x\"\n[[cases]]\n").find("needs one of the keys model and job"),
            std::string::npos);
  EXPECT_NE(message("model = \"a\"\njob = \"b\"\n[[cases]]\n").find("one of the keys"),
            std::string::npos);
  EXPECT_NE(message("model = \"a\"\nunit = \"MB\"\n[[cases]]\n").find("unit"), std::string::npos);
  EXPECT_NE(message("model = \"a\"\n[[cases]]\npublished.speed = 3\n").find("published.speed"),
            std::string::npos);
  EXPECT_NE(message("model = \"a\"\n[[cases]]\nzero = 4\n").find("the most is 3"),
            std::string::npos);
  // A supervised training generates nothing.
  const Result<CaseFile> file =
      read_cases(write("model = \"model\"\n[[cases]]\nname = \"x\"\ndata = 1\npublished.kv = 3\n"));
  ASSERT_TRUE(file.ok());
  Sheet sheet = sheet_of(*file, file->cases[0]);
  EXPECT_NE(add_published(*file, file->cases[0], sheet).message().find("no term \"kv\""),
            std::string::npos);
}

}  // namespace
}  // namespace neap::formulas
