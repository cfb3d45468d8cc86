// Kernels without a GPU: all of them compile, and what is compiled is kept on the disk.
#include "kernels/cubins.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/process.h"
#include "kernels/card_kernels.h"

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
    // Other GPUs than Hopper lack the instructions of this file's kernels.
    const bool has_kernels = GetParam() == kWarpGroupArchitecture || source.name != "some_rows";
    EXPECT_EQ(cubin->find(".text.") != std::string::npos, has_kernels) << source.name;
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
    if (fails_) return Status(ErrorCode::kInternal, "it does not compile");
    return format("{} for {}", source.text, architecture);
  }
  mutable std::atomic<int> compiled = 0;
  bool fails_ = false;
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

// The driver's part in loading, with images that it refuses.
struct FakeDriver {
  static constexpr std::string_view kRefused = "damaged";
  static int load(device::cuda::Module* module, const void* image) {
    ++loads_;
    *module = const_cast<void*>(image);
    return static_cast<const char*>(image) == kRefused ? 200 : 0;
  }
  FakeDriver() {
    loads_ = 0;
    driver.version = 13000;
    driver.context_push = [](device::cuda::Context) { return 0; };
    driver.context_pop = [](device::cuda::Context*) { return 0; };
    driver.module_load = load;
    driver.error_name = [](int, const char** name) {
      *name = "CUDA_ERROR_INVALID_IMAGE";
      return 0;
    };
    driver.error_text = [](int, const char** text) {
      *text = "device kernel image is invalid";
      return 0;
    };
    card.driver = &driver;
    card.process = current_process();
  }
  inline static std::atomic<int> loads_ = 0;
  device::cuda::Driver driver;
  device::cuda::Card card;
};

class Loading : public Cubins {
 protected:
  [[nodiscard]] Status load() {
    CardKernels kernels(compiler_, fake_.card, 90, folder_ / "kernels");
    return kernels.load_all();
  }
  void keep(const std::string& cubin) const {
    for (const auto& file : fs::directory_iterator(folder_ / "kernels"))
      std::ofstream(file.path(), std::ios::trunc) << hash_of(cubin) + cubin;
  }
  const int files_ = static_cast<int>(sources().size());
  FakeDriver fake_;
};

TEST_F(Loading, CompilesWhatIsNotOnTheDisk) {
  ASSERT_TRUE(load().ok());
  EXPECT_EQ(compiler_.compiled, files_);
  ASSERT_TRUE(load().ok());
  EXPECT_EQ(compiler_.compiled, files_);
  EXPECT_EQ(FakeDriver::loads_, 2 * files_);
}

TEST_F(Loading, CompilesAgainWhatTheDriverRefuses) {
  ASSERT_TRUE(load().ok());
  keep(std::string(FakeDriver::kRefused));
  ASSERT_TRUE(load().ok());
  EXPECT_EQ(compiler_.compiled, 2 * files_);
}

TEST_F(Loading, SaysWhatTheDriverRefuses) {
  fake_.driver.module_load = [](device::cuda::Module*, const void*) { return 200; };
  const Status status = load();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find(".cu"), std::string::npos) << status.message();
}

TEST_F(Loading, SaysWhatDoesNotCompile) {
  compiler_.fails_ = true;
  const Status status = load();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("does not compile"), std::string::npos) << status.message();
  EXPECT_EQ(FakeDriver::loads_, 0);
}

}  // namespace
}  // namespace neap::kernels
