// Gives files to a fuzz target, as a test: replay [--plain] FILE_OR_FOLDER... With --plain (a release build) the whole
// process may hold 256 MiB at most; the target itself bounds its time.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace {

namespace fs = std::filesystem;

constexpr long kMostKilobytes = 256 << 10;

std::vector<fs::path> files_of(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  bool is_plain = false;
  int count = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--plain") {
      is_plain = true;
      continue;
    }
    for (const fs::path& path : files_of(argv[i])) {
      std::ifstream file(path, std::ios::binary);
      if (!file) {
        std::fprintf(stderr, "cannot read %s\n", path.c_str());
        return 1;
      }
      const std::string content(std::istreambuf_iterator<char>(file), {});
      std::printf("%s\n", path.filename().c_str());  // before it runs: a crash is the last one's
      std::fflush(stdout);
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(content.data()), content.size());
      rusage usage{};
      getrusage(RUSAGE_SELF, &usage);
      if (is_plain && usage.ru_maxrss > kMostKilobytes) {
        std::fprintf(stderr, "%ld KiB of memory, at most %ld\n", usage.ru_maxrss, kMostKilobytes);
        return 1;
      }
      ++count;
    }
  }
  if (count == 0) std::fprintf(stderr, "no input was found\n");
  return count == 0 ? 1 : 0;
}
