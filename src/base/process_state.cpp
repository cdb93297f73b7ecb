#include "base/process_state.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace quire {

bool has_runnable_thread(pid_t process) {
  std::error_code error;
  const std::filesystem::path threads = "/proc/" + std::to_string(process) + "/task";
  for (std::filesystem::directory_iterator thread(threads, error), end; !error && thread != end;
       thread.increment(error)) {
    // "ID (name) STATE ...", whose name may have parentheses and spaces.
    std::ifstream file(thread->path() / "stat");
    std::string line;
    std::getline(file, line);
    const size_t name_end = line.rfind(')');
    if (name_end != std::string::npos && name_end + 2 < line.size() && line[name_end + 2] == 'R') return true;
  }
  return false;
}

}  // namespace quire
