// Kernels without a GPU: all of them compile, and what is compiled is kept on the disk.
#include "kernels/cubins.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/format.h"

namespace neap::kernels {
namespace {

namespace fs = std::filesystem;

class CompilesFor : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Cards, CompilesFor, ::testing::Values(80, 90),
                         [](const auto& i) { return format("sm_{}", i.param); });

TEST_P(CompilesFor, EveryKernel) {
  const auto compiler = open_compiler({NEAP_TEST_NVRTC});
  if (!compiler.ok())
    GTEST_SKIP() << compiler.status().message() << " (scripts/setup fetches nvidia-cuda-nvrtc)";
  ASSERT_FALSE(sources().empty());
  for (const Source& source : sources()) {
    const auto cubin = (*compiler)->compile(source, GetParam());
    ASSERT_TRUE(cubin.ok()) << cubin.status().message();
    EXPECT_EQ(cubin->substr(1, 3), "ELF") << source.name;
  }
}

TEST(Compiler, SaysWhatIsWrongWithASource) {
  const auto compiler = open_compiler({NEAP_TEST_NVRTC});
  if (!compiler.ok()) GTEST_SKIP() << compiler.status().message();
  const auto cubin = (*compiler)->compile({"wrong", "__global__ void f() { unknown(); }"}, 80);
  ASSERT_FALSE(cubin.ok());
  EXPECT_NE(cubin.status().message().find("wrong.cu"), std::string::npos);
  EXPECT_NE(cubin.status().message().find("\"unknown\" is undefined"), std::string::npos)
      << cubin.status().message();
}

TEST(Compiler, IsMissingWhereNoLibraryLoads) {
  const auto compiler = open_compiler({"/nowhere/libnvrtc.so.13", "/nowhere/libnvrtc.so.12"});
  ASSERT_FALSE(compiler.ok());
  EXPECT_EQ(compiler.status().code(), ErrorCode::kUnsupported);
  EXPECT_NE(compiler.status().message().find("/nowhere/libnvrtc.so.13"), std::string::npos);
}

// Counts, and takes the text for a cubin.
class CountingCompiler final : public Compiler {
 public:
  [[nodiscard]] std::string version() const override { return version_; }
  [[nodiscard]] Result<std::string> compile(const Source& source, int architecture) const override {
    ++compiled;
    return format("{} for {}", source.text, architecture);
  }
  mutable int compiled = 0;
  std::string version_ = "13.0";
};

class Cubins : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              format("neap-cubins-{}", ::testing::UnitTest::GetInstance()->random_seed() +
                                           static_cast<int>(::getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override {
    if (fs::exists(folder_)) fs::permissions(folder_, fs::perms::owner_all);
    fs::remove_all(folder_);
  }
  [[nodiscard]] std::string cubin(const Source& source = {"one", "text"}, int architecture = 90,
                                  int driver = 13000) const {
    return cubin_of(compiler_, source, architecture, driver, folder_ / "kernels").value();
  }
  [[nodiscard]] fs::path only_file() const {
    return fs::directory_iterator(folder_ / "kernels")->path();
  }
  fs::path folder_;
  CountingCompiler compiler_;
};

TEST_F(Cubins, AreCompiledOnce) {
  EXPECT_EQ(cubin(), "text for 90");
  EXPECT_EQ(cubin(), "text for 90");
  EXPECT_EQ(compiler_.compiled, 1);
}

TEST_F(Cubins, BelongToSourceCardDriverAndCompiler) {
  EXPECT_EQ(cubin(), "text for 90");
  EXPECT_EQ(cubin({"one", "other text"}), "other text for 90");
  EXPECT_EQ(cubin({"one", "text"}, 80), "text for 80");
  EXPECT_EQ(cubin({"one", "text"}, 90, 12080), "text for 90");
  compiler_.version_ = "12.8";
  EXPECT_EQ(cubin(), "text for 90");
  EXPECT_EQ(compiler_.compiled, 5);
}

TEST_F(Cubins, ThatAreDamagedAreCompiledAgain) {
  (void)cubin();
  const std::string whole = read_file(only_file()).value();
  for (const std::string& damaged :
       {std::string(), whole.substr(0, 10), whole.substr(0, whole.size() - 1), "x" + whole}) {
    std::ofstream(only_file(), std::ios::trunc) << damaged;
    const int before = compiler_.compiled;
    EXPECT_EQ(cubin(), "text for 90");
    EXPECT_EQ(compiler_.compiled, before + 1);
    EXPECT_EQ(read_file(only_file()).value(), whole);
  }
}

TEST_F(Cubins, NeedNoFolder) {
  std::ofstream(folder_) << "a file in the folder's place";
  EXPECT_EQ(cubin(), "text for 90");
  EXPECT_EQ(cubin_of(compiler_, {"one", "text"}, 90, 13000, {}).value(), "text for 90");
  EXPECT_EQ(compiler_.compiled, 2);
}

}  // namespace
}  // namespace neap::kernels
