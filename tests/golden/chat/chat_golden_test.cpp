// Rendered templates against transformers, made by make_goldens.py.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "text/chat/template.h"

namespace neap::chat {
namespace {

const std::filesystem::path kFolder = NEAP_SOURCE_DIR "/tests/golden/chat";

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

const Json& goldens() {
  static const Json all = [] {
    Json made = Json::parse(read(kFolder / "goldens.json"));
    if (made.at("rendered").size() < 60) throw std::runtime_error("goldens.json lacks templates");
    return made;
  }();
  return all;
}

std::vector<std::string> names() {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder / "templates"))
    found.push_back(entry.path().stem());
  std::sort(found.begin(), found.end());
  return found;
}

Result<Rendered> render(const std::string& source, const Json& conversation) {
  const Result<Template> made = Template::parse(source, "template");
  if (!made.ok()) return made.status();
  RenderOptions options;
  options.tools = conversation.value("tools", Json());
  options.documents = conversation.value("documents", Json());
  options.add_generation_prompt = conversation.at("prompt");
  options.variables = goldens().at("tokens");
  options.variables.update(conversation.value("more", Json::object()));
  options.unix_time = goldens().at("unix_time").get<std::int64_t>();
  return made->render(conversation.at("messages"), options);
}

class ChatTemplate : public ::testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    ::setenv("TZ", "UTC", 1);
    ::tzset();
  }
};
INSTANTIATE_TEST_SUITE_P(Templates, ChatTemplate, ::testing::ValuesIn(names()),
                         [](const auto& i) { return i.param; });

TEST_P(ChatTemplate, RendersAsInTransformers) {
  const std::string source = read(kFolder / "templates" / (GetParam() + ".jinja"));
  ASSERT_TRUE(goldens().at("rendered").contains(GetParam()));
  for (const auto& [name, expected] : goldens()["rendered"][GetParam()].items()) {
    const Result<Rendered> rendered = render(source, goldens()["conversations"][name]);
    if (expected.contains("error")) {
      EXPECT_FALSE(rendered.ok()) << name << " rendered, but transformers says "
                                  << expected["error"];
      continue;
    }
    ASSERT_TRUE(rendered.ok()) << name << ": " << rendered.status().message();
    EXPECT_EQ(rendered->text, expected["text"].get<std::string>()) << name;
    const Json ranges = expected.value("generated", Json::array());
    ASSERT_EQ(rendered->generated.size(), ranges.size()) << name;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      EXPECT_EQ(rendered->generated[i].begin, ranges[i][0].get<std::size_t>()) << name;
      EXPECT_EQ(rendered->generated[i].end, ranges[i][1].get<std::size_t>()) << name;
    }
  }
}

}  // namespace
}  // namespace neap::chat
