// The rules of this repository, held against this repository.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "tests/layering/checker.h"

namespace quire::layering {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
namespace fs = std::filesystem;

const fs::path kRoot = fs::path(QUIRE_TEST_DATA).parent_path().parent_path();

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Every file of the repository under a folder of it that a person wrote: no data.
std::vector<fs::path> written_files(const fs::path& top) {
  static const std::vector<fs::path> all = repository_files(kRoot);
  const auto lies_in = [](const fs::path& path, const fs::path& folder) {
    return !path.lexically_relative(folder).generic_string().starts_with("..");
  };
  std::vector<fs::path> files;
  for (const fs::path& path : all) {
    if (lies_in(path, top) && !lies_in(path, kRoot / "tests" / "data")) files.push_back(path);
  }
  return files;
}

std::string shown(const fs::path& path) {
  return fs::relative(path, kRoot).generic_string();
}

// The lines of dependencies.txt of one kind, as their columns.
std::vector<std::vector<std::string>> dependencies(const std::string& kind) {
  std::vector<std::vector<std::string>> found;
  std::istringstream lines(text_of(kRoot / "dependencies.txt"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first;
    if (!(words >> first) || first != kind) continue;
    found.emplace_back(std::istream_iterator<std::string>(words), std::istream_iterator<std::string>());
  }
  return found;
}

TEST(Repository, TheRulesOfLayeringAreWellFormed) {
  const Rules rules = parse_rules(text_of(kRoot / "tests/layering/allowed.txt"));
  EXPECT_THAT(rules.problems, IsEmpty());
  EXPECT_THAT(rules.folders, Not(IsEmpty()));
}

TEST(Repository, TheSourcesKeepTheLayering) {
  const Rules rules = parse_rules(text_of(kRoot / "tests/layering/allowed.txt"));
  EXPECT_THAT(check_tree(kRoot, rules, repository_files(kRoot)), IsEmpty());
}

TEST(Repository, NoFileIsTooLongToBeReadInOneSitting) {
  static const std::set<std::string> kinds = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".txt"};
  std::vector<std::string> too_long;
  for (const char* top : {"src", "include", "tests", "examples", "bench", "scripts"}) {
    if (!fs::is_directory(kRoot / top)) continue;
    for (const fs::path& path : written_files(kRoot / top)) {
      if (!kinds.contains(path.extension().string())) continue;
      const std::string text = text_of(path);
      const auto lines = std::count(text.begin(), text.end(), '\n');
      const bool is_source = std::string_view(top) == "src" || std::string_view(top) == "include";
      if (lines > (is_source ? 700 : 800)) too_long.push_back(shown(path) + ": " + std::to_string(lines) + " lines");
    }
  }
  EXPECT_THAT(too_long, IsEmpty());
}

// By how clang-format lays them out: a line of `}` alone ends what begins with the last line that is indented as much.
// Namespaces, types and lists end otherwise; of a loop that is too long, its function is as well.
TEST(Repository, NoFunctionIsTooLongToBeSeenAtOnce) {
  constexpr int kMostLines = 80;
  static const std::set<std::string> kinds = {".h", ".cpp", ".cu", ".cuh"};
  struct Head {
    int number = 0;
    std::string text;
  };
  std::vector<std::string> too_long;
  for (const char* top : {"src", "include"}) {
    for (const fs::path& path : written_files(kRoot / top)) {
      if (!kinds.contains(path.extension().string())) continue;
      std::istringstream lines(text_of(path));
      std::map<size_t, Head> heads;  // by how far they are indented
      int number = 0;
      for (std::string line; std::getline(lines, line);) {
        ++number;
        const size_t indent = line.find_first_not_of(' ');
        if (indent == std::string::npos || line[indent] == '#') continue;
        Head& head = heads[indent];
        const int length = number - head.number + 1;
        if (line.substr(indent) == "}" && head.number > 0 && length > kMostLines) {
          too_long.push_back(shown(path) + ": " + std::to_string(length) + " lines: " + head.text);
        }
        head = {number, line};
      }
    }
  }
  EXPECT_THAT(too_long, IsEmpty());
}

TEST(Repository, NoFileNamesAFolderOfTheMachineItWasWrittenOn) {
  // In two parts, so that this file does not name them.
  const std::vector<std::string> folders = {
      "/wo"
      "rk",
      "/ro"
      "ot",
      "/ho"
      "me"};
  const auto is_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-'; };
  std::vector<std::string> found;
  for (const fs::path& path : written_files(kRoot)) {
    const std::string text = text_of(path);
    for (const std::string& folder : folders) {
      for (size_t at = text.find(folder); at != std::string::npos; at = text.find(folder, at + 1)) {
        const char before = at == 0 ? ' ' : text[at - 1];
        const size_t end = at + folder.size();
        const char after = end == text.size() ? ' ' : text[end];
        if (is_name(before) || before == '.' || before == '}' || before == '*' || is_name(after)) continue;
        found.push_back(shown(path) + ": " + text.substr(at, 24));
      }
    }
  }
  EXPECT_THAT(found, IsEmpty());
}

// docs/glossary.md says what is said instead. Words in two parts, so that this file does not have them.
TEST(Repository, OldWordsAreGone) {
  struct OldWord {
    const char* part;   // what each of its lines has, for what a regular expression takes
    const char* found;  // case does not matter
    std::vector<const char*> folders;
  };
  const std::vector<const char*> all = {"src", "include", "tests", "bench", "scripts", "docs", "web", "python"};
  const std::vector<OldWord> old_words = {
      {"omp"
       "an",
       "comp"
       "an(y|ies)",
       all},
      {"pla"
       "y",
       "(^|[^a-z])pla"
       "y(s|ed|ing)?[^a-z][^.]{0,20}(card|device|host|one)\\b",
       all},
      {"pla"
       "yed",
       "(is|not|a|the)[ _]pla"
       "yed",
       all},
      {"bes"
       "ide(",
       "[.>]bes"
       "ide\\(",
       {"src", "tests"}},
      {"for"
       "m",
       "(an?|the|its) for"
       "m of (the|an) answer|answer'?s? for"
       "m\\b|for"
       "ms of answers",
       all},
  };
  std::vector<std::string> found;
  for (const OldWord& old : old_words) {
    const std::regex expression(old.found, std::regex::ECMAScript | std::regex::icase);
    for (const char* top : old.folders) {
      if (!fs::is_directory(kRoot / top)) continue;
      for (const fs::path& path : written_files(kRoot / top)) {
        // One lists them, the others are records of what was run when they were said.
        if (shown(path) == "docs/glossary.md" || shown(path).starts_with("bench/results/")) continue;
        std::istringstream lines(text_of(path));
        for (std::string line; std::getline(lines, line);) {
          if (line.find(old.part) == std::string::npos || line.size() > 2000) continue;
          if (std::regex_search(line, expression)) found.push_back(shown(path) + ": " + line);
        }
      }
    }
  }
  EXPECT_THAT(found, IsEmpty());
}

TEST(Repository, EveryDependencyIsPinned) {
  const auto packages = dependencies("apt");
  EXPECT_THAT(packages, Not(IsEmpty()));
  for (const auto& columns : packages) EXPECT_THAT(columns, SizeIs(2)) << "apt " << columns.front();
  for (const auto& columns : dependencies("pypi")) {
    ASSERT_THAT(columns, SizeIs(3)) << "pypi " << columns.front();
    EXPECT_THAT(columns[0], HasSubstr("=="));
    EXPECT_TRUE(columns[1] == "-" || columns[1].size() == 64) << columns[1];
  }
  const auto models = dependencies("model");
  ASSERT_THAT(models, SizeIs(1));
  EXPECT_THAT(models[0], SizeIs(3));
  EXPECT_THAT(models[0][1], SizeIs(64));
}

TEST(Repository, TheTestsPythonPackagesAreTheOnesPinned) {
  const std::map<std::string, std::string> files = {{"tests", "tests/e2e/requirements.txt"},
                                                    {"page-tests", "tests/e2e/page_requirements.txt"},
                                                    {"ray-tests", "tests/e2e/ray_requirements.txt"},
                                                    {"packages", "scripts/package_requirements.txt"}};
  for (const auto& columns : dependencies("pypi")) {
    const auto file = files.find(columns.at(2));
    if (file == files.end()) continue;
    EXPECT_THAT(text_of(kRoot / file->second), HasSubstr("\n" + columns[0] + " \\\n")) << file->second;
  }
}

// H4: what a client says is hashed, so that lengths are equal, and compared with every key whether one has fitted or
// not.
TEST(Repository, AKeyIsComparedByItsDigestWithEveryOtherAndInConstantTime) {
  const std::string source = text_of(kRoot / "src/server/routes.cpp");
  const size_t begin = source.find("Routes::key_of(const HttpRequest& request) const {");
  ASSERT_NE(begin, std::string::npos);
  const std::string body = source.substr(begin, source.find("\n}\n", begin) - begin);
  const size_t loop = body.find("for (");
  ASSERT_NE(loop, std::string::npos);
  EXPECT_THAT(body.substr(0, loop), HasSubstr("sha256(key)"));
  EXPECT_THAT(body.substr(loop), HasSubstr("CRYPTO_memcmp("));
  for (const char* early : {"return", "break", " == digest"}) {
    const std::string in_loop = body.substr(loop, body.rfind("return found;") - loop);
    EXPECT_THAT(in_loop, Not(HasSubstr(early)));
  }
  // No other source compares a key.
  for (const fs::path& path : written_files(kRoot / "src" / "server")) {
    if (path.stem() == "routes") continue;
    for (const char* compared : {"key_digests_", ".key ==", "api_key ==", "bearer_key(request) =="}) {
      EXPECT_THAT(text_of(path), Not(HasSubstr(compared))) << shown(path);
    }
  }
}

// D1, D2: workers of one host speak over no socket; ranks of several hosts over one of comm, with a secret.
TEST(Repository, NothingListensButTheServer) {
  std::set<std::string> listening;
  for (const fs::path& path : written_files(kRoot / "src")) {
    const std::string text = text_of(path);
    for (const char* call : {"::listen(", "acceptor", "::bind("})
      if (text.find(call) != std::string::npos)
        listening.insert(fs::relative(path.parent_path(), kRoot).generic_string());
  }
  EXPECT_THAT(listening, ElementsAre("src/comm", "src/server"));
}

// Whether a test of that name is there: `Suite.Name`, `fuzz.target`, `e2e.file.test_name`.
bool is_a_test(const std::string& name) {
  static const std::set<std::string> all = [] {
    std::set<std::string> names;
    const std::regex test(R"(\nTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\))");
    const std::regex function(R"(\n    def (test_\w+)\()");
    const auto add = [&](const std::string& text, const std::regex& pattern, const auto& spelled) {
      for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) names.insert(spelled(*it));
    };
    for (const fs::path& path : written_files(kRoot / "tests")) {
      const std::string stem = path.stem().string();
      if (path.extension() == ".cpp" && stem.ends_with("_fuzz"))
        names.insert("fuzz." + stem.substr(0, stem.size() - 5));
      if (path.extension() == ".cpp")
        add(text_of(path), test, [](const std::smatch& m) { return m[1].str() + "." + m[2].str(); });
      if (path.extension() == ".py" && stem.starts_with("test_"))
        add(text_of(path), function, [&](const std::smatch& m) { return "e2e." + stem.substr(5) + "." + m[1].str(); });
    }
    return names;
  }();
  return all.contains(name);
}

TEST(Repository, EveryKindOfAttackHasATestThatExists) {
  std::istringstream lines(text_of(kRoot / "docs/attacks.md"));
  std::set<std::string> ids;
  const std::regex row(R"(\| ([A-Z][0-9](?:, [A-Z][0-9])*) \| [^|]+ \| ([^|]+) \|)");
  const std::regex id(R"([A-Z][0-9])");
  const std::regex name(R"(`([A-Za-z0-9_]+\.[A-Za-z0-9_.]+)`)");
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    if (!std::regex_match(line, found, row)) continue;
    const std::string kinds = found[1];
    const std::string tests = found[2];
    for (std::sregex_iterator it(kinds.begin(), kinds.end(), id), end; it != end; ++it)
      EXPECT_TRUE(ids.insert(it->str()).second) << it->str() << " is there twice";
    EXPECT_TRUE(std::regex_search(tests, name)) << kinds << " names no test";
    for (std::sregex_iterator it(tests.begin(), tests.end(), name), end; it != end; ++it)
      EXPECT_TRUE(is_a_test((*it)[1])) << kinds << ": there is no test " << (*it)[1];
  }
  std::set<std::string> expected;
  for (const auto& [letter, count] :
       std::map<char, int>{{'F', 9}, {'T', 8}, {'G', 7}, {'P', 8}, {'I', 5}, {'H', 8}, {'D', 2}, {'S', 1}})
    for (int i = 1; i <= count; ++i) expected.insert(letter + std::to_string(i));
  EXPECT_EQ(ids, expected);
}

}  // namespace
}  // namespace quire::layering
