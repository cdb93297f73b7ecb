// Runs what --gtest_filter names, as GoogleTest's own main does. With --skipped_cases=FILE the names of the cases that
// were skipped, and why, go into FILE, and a run of nothing else ends with 77, which ctest shows as skipped. With
// --executor=serialising every engine's steps pass through bytes (chosen_executor.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "tests/suites/serialises_steps.h"

namespace {

constexpr int kAllSkipped = 77;

std::string reason_of(const testing::TestInfo& test) {
  for (int i = 0; i < test.result()->total_part_count(); ++i) {
    const testing::TestPartResult& part = test.result()->GetTestPartResult(i);
    if (!part.skipped()) continue;
    std::string reason = part.message();
    return reason.substr(0, reason.find('\n'));
  }
  return "";
}

// The skipped cases of a run that is over, a line each. False: they cannot be written.
bool write_skipped(const std::string& path) {
  std::ofstream out(path, std::ios::trunc);
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (test.should_run() && test.result()->Skipped()) {
        out << suite.name() << '.' << test.name() << ": " << reason_of(test) << '\n';
      }
    }
  }
  return static_cast<bool>(out.flush());
}

// Figures that a test has noted, where it ends: a report of GoogleTest's is lost when a later test ends the program.
class PrintsFigures final : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo& test) override {
    for (int i = 0; i < test.result()->test_property_count(); ++i) {
      const testing::TestProperty& property = test.result()->GetTestProperty(i);
      const std::string_view key = property.key();
      if (key.ends_with("_difference") || key.ends_with("_tolerance"))
        std::printf("[ PROPERTY ] %s %s\n", property.key(), property.value());
    }
  }
};

}  // namespace

bool quire::suites::serialises_steps = false;

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  constexpr std::string_view kFlag = "--skipped_cases=";
  constexpr std::string_view kExecutor = "--executor=serialising";
  std::string skipped;
  for (int i = 1; i < argc; ++i) {
    if (argv[i] == kExecutor) {
      quire::suites::serialises_steps = true;
      continue;
    }
    if (!std::string_view(argv[i]).starts_with(kFlag)) {
      std::fprintf(stderr, "%s: unknown argument; expected GoogleTest's, %s or %sFILE\n", argv[i], kExecutor.data(),
                   kFlag.data());
      return 2;
    }
    skipped = argv[i] + kFlag.size();
  }
  testing::UnitTest::GetInstance()->listeners().Append(new PrintsFigures);
  const int status = RUN_ALL_TESTS();
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  if (status != 0 || skipped.empty()) return status;
  if (all.test_to_run_count() == 0) {
    std::fputs("no test has this name: build again, and ctest will know the new ones\n", stderr);
    return 2;
  }
  if (!write_skipped(skipped)) {
    std::fprintf(stderr, "cannot write %s\n", skipped.c_str());
    return 2;
  }
  return all.skipped_test_count() == all.test_to_run_count() ? kAllSkipped : 0;
}
