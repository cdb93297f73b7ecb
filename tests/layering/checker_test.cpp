// The checker of the layering, on small trees made for it: what is allowed passes, each forbidden thing is named.
#include "tests/layering/checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace quire::layering {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
namespace fs = std::filesystem;

constexpr const char* kRules = R"(
# a comment
folder base:
folder types: base
folder tensor:
folder ops: tensor
folder ops/cpu: ops tensor
folder ops/cuda: ops tensor
folder sched:
folder runner: ops
folder server: sched
folder quire:
folder cli: *
library fmt/: *
library boost/beast: server
library boost/json: server cli
library immintrin.h: ops/cpu
word getenv: cli
word std::regex*:
condition __AVX*: ops/cpu cli
)";

class Layering : public testing::Test {
 protected:
  Layering() : root_(fs::path(testing::TempDir()) / unique_name()) { fs::create_directories(root_); }
  ~Layering() override { fs::remove_all(root_); }

  void file(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::vector<std::string> problems() const { return check_tree(root_, parse_rules(kRules), repository_files(root_)); }

  const fs::path& root() const { return root_; }

 private:
  static std::string unique_name() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    return std::string("layering-") + test->name() + "-" + std::to_string(getpid());
  }
  fs::path root_;
};

TEST_F(Layering, OfACheckoutOnlyTrackedFilesAreRead) {
  file("src/base/a.h", "#include <vector>\n");
  file("src/base/left_here.cpp", "#include \"sched/a.h\"\n");
  const std::string git = "git -C '" + root().string() + "' ";
  if (std::system((git + "init -q >/dev/null 2>&1").c_str()) != 0) GTEST_SKIP() << "there is no git here";
  ASSERT_EQ(std::system((git + "add src/base/a.h").c_str()), 0);
  EXPECT_THAT(repository_files(root()), ElementsAre(root() / "src/base/a.h"));
  EXPECT_THAT(problems(), IsEmpty());
  ASSERT_EQ(std::system((git + "add src/base/left_here.cpp").c_str()), 0);
  EXPECT_THAT(problems(), Not(IsEmpty()));
}

TEST_F(Layering, AllowedIncludesPass) {
  file("src/base/a.h", "#include <vector>\n#include <fmt/format.h>\n");
  file("src/types/b.h", "#include \"base/a.h\"\n");
  file("src/tensor/c.h", "#include \"base/a.h\"\n#include \"types/b.h\"\n");
  file("src/ops/d.h", "#include \"tensor/c.h\"\n");
  file("src/ops/cpu/e.cpp", "#include \"ops/cpu/f.h\"\n#include \"ops/d.h\"\n#include <immintrin.h>\n");
  file("src/ops/cpu/f.h", "#ifdef __AVX2__\n#endif\n");
  file("src/cli/g.cpp", "#include \"ops/cpu/f.h\"\n#include \"quire/llm.h\"\nauto x = getenv(\"HOME\");\n");
  file("include/quire/llm.h", "#include <string>\n");
  EXPECT_THAT(problems(), IsEmpty());
}

TEST_F(Layering, AnIncludeThatTheTableDoesNotAllowFails) {
  file("src/sched/s.h", "");
  file("src/runner/r.cpp", "\n#include \"sched/s.h\"\n");
  EXPECT_THAT(problems(), ElementsAre("src/runner/r.cpp:2: runner may not include sched (\"sched/s.h\")"));
}

TEST_F(Layering, TypesIncludesOnlyBase) {
  file("src/tensor/t.h", "");
  file("src/types/x.h", "#include \"tensor/t.h\"\n");
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("types may not include tensor")));
}

TEST_F(Layering, BaseDoesNotIncludeTypes) {
  file("src/types/x.h", "");
  file("src/base/b.h", "#include \"types/x.h\"\n");
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("base may not include types")));
}

TEST_F(Layering, PublicHeadersDoNotIncludeTheInside) {
  file("src/sched/s.h", "");
  file("include/quire/llm.h", "#include \"sched/s.h\"\n");
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("quire may not include sched")));
}

TEST_F(Layering, BackendsDoNotIncludeEachOther) {
  file("src/ops/cpu/k.h", "");
  file("src/ops/cuda/k.cu", "#include \"ops/cpu/k.h\"\n");
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("ops/cuda may not include ops/cpu")));
}

TEST_F(Layering, AContractDoesNotIncludeItsKernels) {
  file("src/ops/cpu/k.h", "");
  file("src/ops/linear.h", "#include \"ops/cpu/k.h\"\n");
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("ops may not include ops/cpu")));
}

TEST_F(Layering, AnUnknownFolderFails) {
  file("src/utils/misc.h", "");
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("src/utils/misc.h: lies in a folder that no line")));
}

TEST_F(Layering, AnIncludeOfNoFileFails) {
  file("src/base/b.h", "#include \"b2.h\"\n");
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("includes \"b2.h\", which is no file")));
}

TEST_F(Layering, ALibraryOutsideItsFoldersFails) {
  file("src/sched/s.cpp", "#include <boost/beast/http.hpp>\n");
  EXPECT_THAT(problems(), ElementsAre("src/sched/s.cpp:1: <boost/beast/http.hpp> in sched: only in server"));
}

TEST_F(Layering, AnUnknownLibraryFails) {
  file("src/base/b.h", "#include <nlohmann/json.hpp>\n");
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("belongs to no library")));
}

TEST_F(Layering, StandardRegularExpressionsFail) {
  file("src/base/a.h", "#include <regex>\n");
  file("src/base/b.h", "std::regex_match(a, b); int regex = 0;\n");
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("<regex> is not used"),
                                      HasSubstr("`std::regex_match` in base: only in no folder")));
}

TEST_F(Layering, TheEnvironmentIsReadInTheCommandLineOnly) {
  file("src/base/b.cpp", "auto home = std::getenv(\"HOME\");\n");
  EXPECT_THAT(problems(), ElementsAre("src/base/b.cpp:1: `getenv` in base: only in cli"));
}

TEST_F(Layering, AnInstructionSetInAConditionFailsOutsideTheKernels) {
  file("src/runner/r.cpp", "#if defined(__AVX512F__) && 1\n#endif\n");
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("`__AVX512F__` in runner")));
}

TEST_F(Layering, CommentsAndTextAreNotCode) {
  file(
      "src/base/b.cpp",
      "// getenv and #include \"server/x.h\"\n/* getenv\n#include <regex>\n*/\n"
      "const char* a = \"getenv \\\" getenv\"; int n = 1'000;\nconst char* b = R\"x(getenv)\" )x\";\nchar q = '\"';\n");
  EXPECT_THAT(problems(), IsEmpty());
}

TEST_F(Layering, CodeAfterACommentOrTextIsStillRead) {
  file("src/base/b.cpp", "/* x */ auto a = \"x\"; auto b = getenv(\"y\"); // z\n");
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("b.cpp:1: `getenv`")));
}

TEST_F(Layering, FilesThatIncludeEachOtherFail) {
  file("src/base/a.h", "#include \"base/b.h\"\n");
  file("src/base/b.h", "#include \"base/c.h\"\n");
  file("src/base/c.h", "#include \"base/a.h\"\n");
  EXPECT_THAT(problems(),
              ElementsAre("files include each other in a circle: base/a.h -> base/b.h -> base/c.h -> base/a.h"));
}

TEST_F(Layering, AFileThatIncludesItselfFails) {
  file("src/base/a.h", "#include \"base/a.h\"\n");
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("base/a.h -> base/a.h")));
}

TEST(LayeringRules, ALineOfAnotherShapeIsNamed) {
  EXPECT_THAT(parse_rules("folder base:\nfoldr x: base\n").problems, ElementsAre(HasSubstr("allowed.txt:2")));
}

TEST(LayeringRules, AFolderThatNoLineDeclaresIsNamed) {
  EXPECT_THAT(parse_rules("folder kv: bsae\n").problems, ElementsAre(HasSubstr("the folder bsae")));
}

TEST(LayeringRules, FoldersInACircleAreNamed) {
  EXPECT_THAT(parse_rules("folder kv: sched\nfolder sched: kv\n").problems, ElementsAre(HasSubstr("in a circle")));
}

}  // namespace
}  // namespace quire::layering
