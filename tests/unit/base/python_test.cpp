#include "base/python.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <filesystem>
#include <fstream>

namespace neap {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Python : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / (std::string("neap_python_") + test->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "here" / "torch");
    fs::create_directories(folder_ / "packages");
    // What Python and a program import early, and what it looks for.
    for (const char* name : {"json.py", "linecache.py", "os.py", "re.py", "torch/__init__.py"})
      std::ofstream(folder_ / "here" / name) << "print('imported from the working folder')\n";
    std::ofstream(folder_ / "packages" / "mine.py") << "name = 'of PYTHONPATH'\n";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string output(const char* code, std::vector<std::string> interpreter,
                     const std::string& path) {
    auto program = python_program(
        code, {"argument"}, std::move(interpreter),
        std::vector<std::string>{std::string("PATH=") + ::getenv("PATH"), "PYTHONPATH=" + path});
    program.folder = folder_ / "here";
    auto child = ChildProcess::start(program);
    EXPECT_TRUE(child.ok()) << child.status().message();
    if (!child.ok()) return {};
    std::string out;
    Status more;
    while (more.ok()) {
      pollfd file{(*child)->out(), POLLIN, 0};
      EXPECT_EQ(::poll(&file, 1, 30000), 1);
      more = (*child)->read(out);
    }
    return out + (*child)->recent_errors();
  }

  fs::path folder_;
  static constexpr const char* kLook =
      "import importlib.util, json, sys\n"
      "import mine, os\n"
      "print(json.dumps([mine.name, sys.argv[1], os.environ.get('PYTHONSAFEPATH')]))\n"
      "print('torch' if 'here' in str(importlib.util.find_spec('torch')) else 'no torch')\n";
};

TEST_F(Python, ImportsNothingFromTheWorkingFolder) {
  const std::string packages = (folder_ / "packages").string();
  // An empty entry is the working folder, too.
  for (const std::string& path : {packages, ":" + packages, packages + ":", packages + "::"}) {
    EXPECT_EQ(output(kLook, {"python3"}, path),
              "[\"of PYTHONPATH\", \"argument\", null]\nno torch\n")
        << path;
  }
}

TEST_F(Python, OlderThanItsSafePathDoesNotEither) {
  const std::string packages = (folder_ / "packages").string();
  EXPECT_EQ(output(kLook, {"env", "-u", "PYTHONSAFEPATH", "python3"}, packages),
            "[\"of PYTHONPATH\", \"argument\", null]\nno torch\n");
}

TEST_F(Python, ImportsWhatTheUserAskedFor) {
  // The folder itself on PYTHONPATH, and packages of the user's site folder.
  const std::string here = (folder_ / "here").string();
  EXPECT_THAT(output("import torch", {"python3"}, here), HasSubstr("imported from the working"));
  EXPECT_EQ(output("print(sys.flags.no_user_site, sys.flags.ignore_environment)", {"python3"}, ""),
            "0 0\n");
}

}  // namespace
}  // namespace neap
