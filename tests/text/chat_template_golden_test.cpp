// Real models' templates, and expressions of every kind, against what jinja2 (configured as transformers does)
// rendered.
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <boost/json.hpp>

#include "text/chat_template.h"

namespace quire::text {
namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// 26 July 2024, 13:05:09: a Friday, day 208.
std::tm fixed_clock() {
  std::tm time{};
  time.tm_year = 124;
  time.tm_mon = 6;
  time.tm_mday = 26;
  time.tm_hour = 13;
  time.tm_min = 5;
  time.tm_sec = 9;
  time.tm_wday = 5;
  time.tm_yday = 207;
  return time;
}

std::filesystem::path data() {
  return std::filesystem::path(QUIRE_TEST_DATA) / "templates";
}

std::vector<std::string> template_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(data())) {
    if (entry.path().extension() == ".jinja") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class RealTemplate : public testing::TestWithParam<std::string> {};

TEST_P(RealTemplate, RendersEveryConversationAsJinjaDid) {
  auto parsed = ChatTemplate::parse(read(data() / (GetParam() + ".jinja")), {}, fixed_clock);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const auto goldens = boost::json::parse(read(data() / (GetParam() + ".golden.json"))).as_object();
  ASSERT_FALSE(goldens.empty());
  for (const auto& [name, golden] : goldens) {
    SCOPED_TRACE(std::string(name));
    const auto& input = golden.at("input");
    const boost::json::object variables =
        input.is_string() ? boost::json::parse(input.get_string()).as_object() : input.as_object();
    const auto rendered = parsed->render(variables, {});
    if (golden.as_object().contains("error")) {
      EXPECT_FALSE(rendered.ok());
    } else {
      ASSERT_TRUE(rendered.ok()) << rendered.status().message();
      EXPECT_EQ(concatenate(*rendered), golden.at("output").as_string());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RealTemplate, testing::ValuesIn(template_names()), [](const auto& instance) {
  std::string name = instance.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

// Each line: {"template", "variables", and "output" or "error": true}.
TEST(SmallTemplates, RenderAsJinjaDid) {
  std::istringstream lines(read(data() / "small_templates.jsonl"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto golden = boost::json::parse(line).as_object();
    const std::string source(golden.at("template").as_string());
    SCOPED_TRACE(source);
    auto parsed = ChatTemplate::parse(source, {}, fixed_clock);
    if (golden.contains("error")) {
      const bool renders = parsed.ok() && parsed->render(golden.at("variables").as_object(), {}).ok();
      EXPECT_FALSE(renders);
      continue;
    }
    if (!parsed.ok()) {
      ADD_FAILURE() << parsed.status().message();
      continue;
    }
    const auto rendered = parsed->render(golden.at("variables").as_object(), {});
    if (rendered.ok()) {
      EXPECT_EQ(concatenate(*rendered), golden.at("output").as_string());
    } else {
      ADD_FAILURE() << rendered.status().message();
    }
  }
  EXPECT_GE(count, 150);
}

}  // namespace
}  // namespace quire::text
