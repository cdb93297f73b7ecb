#include "cli/worker_processes.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "base/process_state.h"

namespace quire::cli {
namespace {

constexpr const char* kThisProgram = "/proc/self/exe";

// Empty where the system does not say.
std::string name_of_this_program() {
  std::error_code error;
  return std::filesystem::read_symlink(kThisProgram, error).filename().string();
}

class ProgramProcess final : public runner::WorkerProcess {
 public:
  explicit ProgramProcess(pid_t id) : id_(id) {}
  ~ProgramProcess() override {
    if (how_) return;
    kill(id_, SIGKILL);  // a stopped one too
    int status = 0;
    while (waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  int id() const override { return id_; }
  bool could_run() const override { return has_runnable_thread(id_); }
  std::optional<std::string> ended() override {
    if (how_) return how_;
    int status = 0;
    const pid_t waited = waitpid(id_, &status, WNOHANG);
    if (waited == id_) {
      succeeded_ = WIFEXITED(status) && WEXITSTATUS(status) == 0;
      how_ = WIFSIGNALED(status) ? fmt::format("was killed by signal {}", WTERMSIG(status))
                                 : fmt::format("has ended with code {}", WEXITSTATUS(status));
    } else if (waited < 0 && errno == ECHILD) {
      // A program that the engine is a part of may wait for all of its children.
      how_ = "has ended, how was told to another part of this program";
    }
    return how_;
  }
  bool succeeded() override { return ended() && succeeded_; }

 private:
  const pid_t id_;
  std::optional<std::string> how_;
  bool succeeded_ = false;
};

// What posix_spawn() is told, given back at the end.
class SpawnPlan {
 public:
  SpawnPlan() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
  }
  ~SpawnPlan() {
    posix_spawnattr_destroy(&attributes_);
    posix_spawn_file_actions_destroy(&actions_);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  // Of this process's descriptors the worker has the terminal and the segment: no client's connection, no port.
  void hand_on(int descriptor) {
    posix_spawn_file_actions_adddup2(&actions_, descriptor, kSegmentDescriptor);
    posix_spawn_file_actions_addclosefrom_np(&actions_, kSegmentDescriptor + 1);
  }
  void hand_on_nothing() {
    posix_spawn_file_actions_addopen(&actions_, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addclosefrom_np(&actions_, kSegmentDescriptor);
  }
  // A process group of its own: what the terminal sends is for the server to heed. No signal is held back.
  void stand_apart() {
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  }
  // variables: "NAME=value", before those of this process.
  Result<pid_t> run(const std::string& program, std::vector<std::string> arguments,
                    std::vector<std::string> variables = {}) {
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    std::vector<char*> own;
    for (std::string& variable : variables) own.push_back(variable.data());
    for (char* const variable : own_environment()) own.push_back(variable);  // with its end
    pid_t id = 0;
    const int error = posix_spawn(&id, program.c_str(), &actions_, &attributes_, pointers.data(), own.data());
    if (error != 0) return resource_exhausted("a worker's process cannot be started: {}", std::strerror(error));
    return id;
  }

 private:
  // What this process has. Where nobody has chosen how NCCL sums, it is in rings: trees, and switches that add up, have
  // orders that follow from the topology too.
  static std::vector<char*> own_environment() {
    static char rings[] = "NCCL_ALGO=Ring";
    const std::string_view name(rings, std::string_view(rings).find('=') + 1);
    std::vector<char*> variables;
    bool chosen = false;
    for (char** variable = environ; *variable != nullptr; ++variable) {
      chosen = chosen || std::string_view(*variable).starts_with(name);
      variables.push_back(*variable);
    }
    if (!chosen) variables.push_back(rings);
    variables.push_back(nullptr);
    return variables;
  }

  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

class ProgramLauncher final : public runner::WorkerLauncher {
 public:
  explicit ProgramLauncher(std::string program) : program_(std::move(program)) {}
  Result<std::unique_ptr<runner::WorkerProcess>> launch(const comm::SharedSegment& memory,
                                                        const runner::WorkerSegment::Shape& shape, int rank) override {
    // What all of them would say the first says.
    const bool is_talkative = log_level() == "debug" || log_level() == "info";
    const std::string level(rank > 0 && is_talkative ? "warning" : log_level());
    SpawnPlan plan;
    plan.hand_on(memory.descriptor());
    plan.stand_apart();
    QUIRE_ASSIGN_OR_RETURN(
        const pid_t id,
        plan.run(program_, {"quire", "worker", "--rank", std::to_string(rank), "--stages",
                            std::to_string(shape.num_stages), "--stage-size", std::to_string(shape.stage_size),
                            "--server", std::to_string(getpid()), "--log-level", level}));
    return std::unique_ptr<runner::WorkerProcess>(std::make_unique<ProgramProcess>(id));
  }

 private:
  const std::string program_;
};

}  // namespace

Result<std::unique_ptr<runner::WorkerProcess>> start_again(const std::vector<std::string>& arguments,
                                                           const std::vector<std::string>& environment) {
  SpawnPlan plan;
  plan.hand_on_nothing();
  plan.stand_apart();
  QUIRE_ASSIGN_OR_RETURN(const pid_t id, plan.run(kThisProgram, arguments, environment));
  return std::unique_ptr<runner::WorkerProcess>(std::make_unique<ProgramProcess>(id));
}

bool is_quire() {
  return name_of_this_program().starts_with("quire");
}

Result<std::unique_ptr<runner::WorkerLauncher>> make_process_launcher(const std::string& program) {
  if (!program.empty()) {
    if (access(program.c_str(), X_OK) != 0) {
      return not_found(
          "tensor_parallel_size, distributed_executor_backend: workers are processes of the quire program, expected at "
          "\"{}\": {}",
          program, std::strerror(errno));
    }
    return std::unique_ptr<runner::WorkerLauncher>(std::make_unique<ProgramLauncher>(program));
  }
  if (!is_quire()) {
    return unimplemented(
        "tensor_parallel_size, distributed_executor_backend: workers are processes of the quire program; inside of "
        "another one ({}) a model is computed in one process: start `quire serve` with them",
        name_of_this_program());
  }
  return std::unique_ptr<runner::WorkerLauncher>(std::make_unique<ProgramLauncher>(kThisProgram));
}

}  // namespace quire::cli
