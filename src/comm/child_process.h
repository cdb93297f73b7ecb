// A child process that lives no longer than the process that started it, and what is left of it when it has ended. It
// knows nothing but the C++ library and the system, for it is also compiled into libquire_ray.so, with another ABI.
#pragma once

#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace quire::comm {

struct ChildEnd {
  int code = 0;      // its exit code, where signal is 0
  int signal = 0;    // what ended it, else 0
  std::string tail;  // the last lines that it wrote to stderr, at most kTailBytes of them
};

class ChildProcess {
 public:
  static constexpr size_t kTailBytes = 2048;

  // command: the program's path, then its arguments; environment: "NAME=value", in place of this process's own
  // variables of these names and beside the others; folder: where it starts, if there is such a folder. Its stdin is
  // /dev/null; what it writes to stderr also goes to this process's. Throws std::runtime_error with a reason when it
  // cannot be started.
  ChildProcess(const std::vector<std::string>& command, const std::vector<std::string>& environment,
               const std::string& folder);
  // Kills it, if it is still there.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  int id() const { return id_; }
  // Until it has ended.
  const ChildEnd& wait();

 private:
  void live(std::vector<char*> command, std::vector<char*> environment, const char* folder, int report);
  void follow(int pipe, int child);
  void keep(const char* text, size_t bytes);

  int id_ = -1;
  ChildEnd end_;
  std::mutex mutex_;
  bool is_reaped_ = false;  // and its id may be another's
  // The kernel kills the child when the thread that made it ends, not when the process does: so one makes it and stays.
  std::thread thread_;
};

}  // namespace quire::comm
