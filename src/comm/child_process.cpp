#include "comm/child_process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace quire::comm {
namespace {

// What a process that could not start its child, or a child that could not become the program, says through a pipe.
struct StartReport {
  int id = -1;
  int error = 0;  // errno, 0 when all went well
};

std::vector<char*> child_pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> child_environment(const std::vector<std::string>& own) {
  std::vector<std::string> all = own;
  const auto is_own = [&](const char* entry) {
    for (const std::string& other : own) {
      const size_t name = other.find('=') + 1;
      if (other.compare(0, name, entry, name) == 0) return true;
    }
    return false;
  };
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!is_own(*entry)) all.emplace_back(*entry);
  }
  return all;
}

// Between fork() and exec() of a process with threads: calls that are safe in a handler of signals alone.
[[noreturn]] void become(char* const* command, char* const* environment, const char* folder, int errors, int report,
                         int parent) {
  const auto give_up = [&] {
    const StartReport failed{.id = getpid(), .error = errno};
    [[maybe_unused]] const ssize_t told = write(report, &failed, sizeof(failed));
    _exit(127);
  };
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up();
  if (getppid() != parent) _exit(127);  // it ended before the line above
  for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int nothing = open("/dev/null", O_RDONLY);
  if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(errors, STDERR_FILENO) < 0) give_up();
  // Nobody's sockets are the program's; report is closed by becoming it, too.
  syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  if (*folder != '\0' && chdir(folder) != 0 && errno != ENOENT) give_up();
  execve(command[0], command, environment);
  give_up();
  _exit(127);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                           const std::string& folder) {
  if (command.empty()) throw std::runtime_error("there is no program to start");
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) throw std::runtime_error(std::string("no pipe: ") + std::strerror(errno));
  std::vector<std::string> words = command;
  std::vector<std::string> variables = child_environment(environment);
  thread_ = std::thread([this, &words, &variables, &folder, write_end = report[1]] {
    live(child_pointers(words), child_pointers(variables), folder.c_str(), write_end);
  });
  // The pipe ends when the program has begun: both who made it and the child have closed their ends then.
  StartReport last;
  StartReport next;
  ssize_t bytes = 0;
  do {
    bytes = read(report[0], &next, sizeof(next));
    if (bytes == static_cast<ssize_t>(sizeof(next)) && (next.error != 0 || last.error == 0)) last = next;
  } while (bytes > 0 || (bytes < 0 && errno == EINTR));
  close(report[0]);
  id_ = last.id;
  if (last.error == 0) return;
  thread_.join();
  throw std::runtime_error(command[0] + ": " + std::strerror(last.error));
}

ChildProcess::~ChildProcess() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    if (!is_reaped_) kill(id_, SIGKILL);
  }
  thread_.join();
}

const ChildEnd& ChildProcess::wait() {
  if (thread_.joinable()) thread_.join();
  return end_;
}

void ChildProcess::live(std::vector<char*> command, std::vector<char*> environment, const char* folder, int report) {
  int errors[2] = {-1, -1};
  StartReport told;
  const int parent = getpid();
  if (pipe2(errors, O_CLOEXEC) == 0) told.id = fork();
  if (told.id == 0) become(command.data(), environment.data(), folder, errors[1], report, parent);
  if (told.id < 0) told.error = errno;
  [[maybe_unused]] const ssize_t written = write(report, &told, sizeof(told));
  if (errors[1] >= 0) close(errors[1]);
  const int id = told.id;
  close(report);  // from here on nothing of the caller's is touched: its strings are gone
  if (id > 0) {
    const int child = static_cast<int>(syscall(SYS_pidfd_open, id, 0));
    follow(errors[0], child);
    if (child >= 0) close(child);
  }
  if (errors[0] >= 0) close(errors[0]);
  if (id <= 0) return;
  siginfo_t info{};
  while (waitid(P_PID, static_cast<id_t>(id), &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
  const std::lock_guard lock(mutex_);
  int status = 0;
  waitpid(id, &status, 0);
  is_reaped_ = true;
  if (WIFSIGNALED(status)) {
    end_.signal = WTERMSIG(status);
  } else {
    end_.code = WEXITSTATUS(status);
  }
}

// Passes on what the child writes and keeps its end, until it has ended: what it started itself may still write.
void ChildProcess::follow(int pipe, int child) {
  char piece[4096];
  bool has_ended = false;
  for (;;) {
    pollfd watched[] = {{.fd = pipe, .events = POLLIN, .revents = 0}, {.fd = child, .events = POLLIN, .revents = 0}};
    const int ready = poll(watched, 2, has_ended ? 0 : -1);
    if (ready < 0 && errno == EINTR) continue;
    if ((watched[0].revents & (POLLIN | POLLHUP)) != 0) {
      const ssize_t bytes = read(pipe, piece, sizeof(piece));
      if (bytes <= 0) return;
      [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, piece, static_cast<size_t>(bytes));
      keep(piece, static_cast<size_t>(bytes));
    } else if (has_ended || ready < 0) {
      return;
    }
    has_ended = has_ended || watched[1].revents != 0;
  }
}

// Whole lines, if there are any.
void ChildProcess::keep(const char* text, size_t bytes) {
  end_.tail.append(text, bytes);
  if (end_.tail.size() <= kTailBytes) return;
  const size_t cut = end_.tail.size() - kTailBytes;
  const size_t line = end_.tail.find('\n', cut - 1);
  end_.tail.erase(0, line == std::string::npos || line + 1 == end_.tail.size() ? cut : line + 1);
}

}  // namespace quire::comm
