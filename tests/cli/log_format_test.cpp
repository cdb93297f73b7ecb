// Lines of the log as a person reads them.
#include "cli/log_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"

namespace quire::cli {
namespace {

using testing::EndsWith;

class LogFormat : public testing::Test {
 protected:
  static void SetUpTestSuite() { log_to_standard_error(); }
  template <typename Write>
  static std::string written(const Write& write) {
    testing::internal::CaptureStderr();
    write();
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(LogFormat, ControlCharactersOfAPromptMakeNoLinesAndMoveNoCursor) {
  const std::string line = written([] {
    log_with(LogLevel::kInfo,
             {{"first_prompt",
               "a\n2030 error forged\r\x1b[2J\x7f\t\xC2\x9B"
               "b\xC3\xA9"}},
             "request");
  });
  EXPECT_THAT(line, EndsWith("info request first_prompt=\"a\\n2030 error forged\\r\\x1b[2J\\x7f\\t\\x9bb\xC3\xA9\"\n"));
  const std::string message = written([] { log_info("{}", "a\nb\x1b"); });
  EXPECT_THAT(message, EndsWith("info a\\nb\\x1b\n"));
}

TEST_F(LogFormat, AValueWithoutAnythingToHideStandsBare) {
  EXPECT_THAT(written([] {
                log_with(LogLevel::kInfo, {{"a", "b"}, {"c", "d e"}, {"f", "g\nh"}}, "m");
              }),
              EndsWith("info m a=b c=\"d e\" f=\"g\\nh\"\n"));
}

}  // namespace
}  // namespace quire::cli
