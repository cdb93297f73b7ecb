#include "comm/ray_ranks.h"

#include <dlfcn.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "comm/ray_calls.h"
#include "comm/ray_nodes.h"

namespace quire::comm {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLookEvery{100};  // at the ranks
constexpr int kAnswerMs = 5000;                       // a cluster's head answers at once where there is one

std::string how_to_install() {
  return fmt::format("install the same one on every node: pip install \"ray[cpp]=={}\"", ray_version());
}

// Ray's threads take none of the process's signals, and what is done about them stays: Ray sets handlers of its own
// that write where the process was, of SIGTERM too.
class SignalsAsTheyWere {
 public:
  SignalsAsTheyWere() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask_);
    for (int number = 1; number < NSIG; ++number)
      known_[static_cast<size_t>(number)] = sigaction(number, nullptr, &handlers_[static_cast<size_t>(number)]) == 0;
  }
  ~SignalsAsTheyWere() {
    for (int number = 1; number < NSIG; ++number) {
      if (known_[static_cast<size_t>(number)]) sigaction(number, &handlers_[static_cast<size_t>(number)], nullptr);
    }
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }
  SignalsAsTheyWere(const SignalsAsTheyWere&) = delete;
  SignalsAsTheyWere& operator=(const SignalsAsTheyWere&) = delete;

 private:
  sigset_t mask_{};
  std::array<struct sigaction, NSIG> handlers_{};
  std::array<bool, NSIG> known_{};
};

struct Text {
  std::array<char, 4096> data{};
  QuireRayText out() { return {.data = data.data(), .size = static_cast<int>(data.size())}; }
  std::string words() const { return data.data(); }
};

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  const int number_;
};

bool wait_until_ready(int socket, int16_t events) {
  pollfd watched{.fd = socket, .events = events, .revents = 0};
  return poll(&watched, 1, kAnswerMs) > 0;
}

// Whether who is at the other end begins as a server of gRPC does: with a frame of settings, once it was greeted.
// https://www.rfc-editor.org/rfc/rfc9113#section-3.4
bool speaks_http2(int socket) {
  constexpr std::string_view kGreeting("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", 33);
  constexpr char kSettings = 4;  // a frame: 3 bytes of length, its kind, ...
  if (send(socket, kGreeting.data(), kGreeting.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(kGreeting.size()))
    return false;
  std::array<char, 4> begin{};
  size_t have = 0;
  while (have < begin.size()) {
    if (!wait_until_ready(socket, POLLIN)) return false;
    const ssize_t bytes = recv(socket, begin.data() + have, begin.size() - have, 0);
    if (bytes <= 0) return false;
    have += static_cast<size_t>(bytes);
  }
  return begin[3] == kSettings;
}

// Empty, or why one of a host's addresses is no cluster's.
std::string why_not(const addrinfo& one) {
  const Descriptor socket(::socket(one.ai_family, one.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, one.ai_protocol));
  if (socket.number() < 0) return std::strerror(errno);
  if (connect(socket.number(), one.ai_addr, one.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return std::strerror(errno);
    if (!wait_until_ready(socket.number(), POLLOUT)) return std::strerror(ETIMEDOUT);
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return std::strerror(error);
  }
  return speaks_http2(socket.number()) ? "" : "who listens there does not speak gRPC, or speaks it with TLS alone";
}

// Where nobody answers, Ray ends the process after a minute.
Status check_cluster_answers(const std::string& address) {
  const size_t colon = address.rfind(':');
  const addrinfo hints{.ai_flags = AI_NUMERICSERV, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), &hints, &found);
  std::string why = error != 0 ? gai_strerror(error) : "it has no address";
  for (const addrinfo* one = found; one != nullptr && !why.empty(); one = one->ai_next) why = why_not(*one);
  if (found != nullptr) freeaddrinfo(found);
  if (why.empty()) return {};
  return not_found(
      "no Ray cluster answers at {} ({}): start one with `ray start --head`, or say where it is in RAY_ADDRESS",
      address, why);
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return addresses;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    std::array<char, NI_MAXHOST> text{};
    if (one->ifa_addr == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(one->ifa_addr, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0)
      addresses.emplace_back(text.data());
  }
  freeifaddrs(first);
  return addresses;
}

struct Module {
  const QuireRayCalls* calls = nullptr;
  std::string path;
};

Result<Module> load_module(const RayRanksOptions& options) {
  // By itself, with nothing of Ray's: only join() and its like need that.
  void* const opened = dlopen(options.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    const char* why = dlerror();
    return not_found(
        "{}: a quire that computes over a Ray cluster is built with cmake -DQUIRE_RAY=ON, and has its library beside "
        "it",
        why == nullptr ? options.library : why);
  }
  const auto give_calls = reinterpret_cast<decltype(&quire_ray_calls)>(dlsym(opened, "quire_ray_calls"));
  const QuireRayCalls* const calls = give_calls == nullptr ? nullptr : give_calls();
  Dl_info where{};
  if (calls == nullptr || calls->version != kQuireRayVersion || std::string_view(calls->ray_version) != ray_version() ||
      dladdr(reinterpret_cast<void*>(give_calls), &where) == 0) {
    return not_found("{} is not of this quire: take the one that was built with it", options.library);
  }
  std::error_code error;
  return Module{.calls = calls, .path = fs::absolute(where.dli_fname, error).lexically_normal().string()};
}

struct Cluster {
  std::string metadata;
  std::vector<std::string> records;
};

Result<std::vector<RayNode>> look_at_cluster(const QuireRayCalls& calls, const std::string& address) {
  QUIRE_RETURN_IF_ERROR(check_cluster_answers(address));
  Cluster cluster;
  Text why;
  const int outcome = calls.look(
      address.c_str(), &cluster,
      [](void* to, const char* json, uint64_t bytes) { static_cast<Cluster*>(to)->metadata.assign(json, bytes); },
      [](void* to, const char* record, uint64_t bytes) {
        static_cast<Cluster*>(to)->records.emplace_back(record, bytes);
      },
      why.out());
  if (outcome != kQuireRayDone) return unavailable("the Ray cluster at {} cannot be asked: {}", address, why.words());
  QUIRE_RETURN_IF_ERROR(
      check_ray_version(cluster.metadata, ray_version()).with_prefix(fmt::format("the Ray cluster at {}: ", address)));
  std::vector<RayNode> nodes;
  for (const std::string& record : cluster.records) {
    QUIRE_ASSIGN_OR_RETURN(nodes.emplace_back(), parse_ray_node(record));
  }
  return nodes;
}

std::vector<const char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<const char*> pointers;
  for (const std::string& string : strings) pointers.push_back(string.c_str());
  pointers.push_back(nullptr);
  return pointers;
}

class StartedRanks final : public RayRanks {
 public:
  StartedRanks(const QuireRayCalls& calls, const RayRanksOptions& options)
      : calls_(calls), options_(options), nodes_(options.environments.size()), ended_(nodes_.size()) {}

  ~StartedRanks() override {
    if (watcher_.joinable()) {
      {
        const std::lock_guard lock(mutex_);
        is_ending_ = true;
      }
      wake_.notify_all();
      watcher_.join();
      wait_for_ends();
    }
    calls_.leave();
  }

  Status start_all() {
    const int count = static_cast<int>(nodes_.size());
    Text why;
    const int placed = calls_.place(count, options_.cpus_per_rank, options_.strategy == RayStrategy::kSpread ? 1 : 0,
                                    static_cast<int>(options_.placement_timeout.count()), why.out());
    if (placed == kQuireRayFailed) return unavailable("Ray cannot reserve cores for {} ranks: {}", count, why.words());
    if (placed == kQuireRayTimedOut) {
      return deadline_exceeded(
          "the Ray cluster had no {} times {} free cores within {} s: `ray status` says who has them", count,
          options_.cpus_per_rank, options_.placement_timeout.count());
    }
    std::vector<std::string> command{options_.program};
    command.insert(command.end(), options_.arguments.begin(), options_.arguments.end());
    for (int i = 0; i < count; ++i) {
      const auto& environment = options_.environments[static_cast<size_t>(i)];
      if (calls_.start(i, pointers_to(command).data(), pointers_to(environment).data(), options_.folder.c_str(),
                       why.out()) != kQuireRayDone)
        return unavailable("Ray cannot make the actor of rank {}: {}", i + 1, why.words());
    }
    const auto until = std::chrono::steady_clock::now() + options_.start_timeout;
    for (int i = 0; i < count; ++i) QUIRE_RETURN_IF_ERROR(wait_for_start(i, until));
    watcher_ = std::thread([this] { watch(); });
    return {};
  }

  Status status() const override {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  const std::string& node(int rank) const override { return nodes_.at(static_cast<size_t>(rank) - 1); }

 private:
  Status wait_for_start(int index, std::chrono::steady_clock::time_point until) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    Text text;
    const int outcome = calls_.started(index, static_cast<int>(std::max<int64_t>(left.count(), 1)), text.out());
    if (outcome == kQuireRayDone) {
      nodes_[static_cast<size_t>(index)] = text.words();
      return {};
    }
    if (outcome == kQuireRayTimedOut) {
      return deadline_exceeded(
          "Ray has not started rank {} within {} s. The log of the node's worker says why, most often that it has no "
          "ray-cpp, or no {}: {}",
          index + 1, options_.start_timeout.count(), options_.library, how_to_install());
    }
    return unavailable("rank {} cannot be started: {}", index + 1, text.words());
  }

  // Whether it has ended, and then how.
  bool look_at(int index, Status& how) {
    if (ended_[static_cast<size_t>(index)]) return true;
    int code = 0;
    int signal = 0;
    Text text;
    const int outcome = calls_.ended(index, &code, &signal, text.out());
    if (outcome == kQuireRayStillThere) return false;
    ended_[static_cast<size_t>(index)] = true;
    std::string tail = text.words();
    while (!tail.empty() && tail.back() == '\n') tail.pop_back();
    if (outcome != kQuireRayDone) {
      how = unavailable("rank {} on node {} is lost: {}", index + 1, node(index + 1), tail);
    } else {
      how = unavailable("rank {} on node {} has ended, {}{}{}", index + 1, node(index + 1),
                        signal != 0 ? fmt::format("by signal {}", signal) : fmt::format("with exit code {}", code),
                        tail.empty() ? "" : ":\n", tail);
    }
    return true;
  }

  void watch() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, kLookEvery, [this] { return is_ending_; })) {
      lock.unlock();
      Status first;
      for (int i = 0; i < static_cast<int>(nodes_.size()) && first.ok(); ++i) {
        if (!ended_[static_cast<size_t>(i)]) look_at(i, first);
      }
      lock.lock();
      if (status_.ok() && !first.ok()) status_ = std::move(first);
    }
  }

  void wait_for_ends() {
    const auto until = std::chrono::steady_clock::now() + options_.end_timeout;
    for (;;) {
      bool all = true;
      Status ignored;
      for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) all = look_at(i, ignored) && all;
      if (all || std::chrono::steady_clock::now() >= until) return;
      std::this_thread::sleep_for(kLookEvery / 4);
    }
  }

  const QuireRayCalls& calls_;
  const RayRanksOptions options_;
  std::vector<std::string> nodes_;  // from rank 1 on
  std::vector<bool> ended_;         // the watcher's, and then the destructor's
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool is_ending_ = false;
  Status status_;
  std::thread watcher_;
};

Status join_cluster(const Module& module, const RayRanksOptions& options) {
  const SignalsAsTheyWere held;
  Text why;
  if (module.calls->load(options.ray_api.c_str(), why.out()) != kQuireRayDone)
    return not_found("{}: {}", why.words(), how_to_install());
  QUIRE_ASSIGN_OR_RETURN(const std::vector<RayNode> nodes, look_at_cluster(*module.calls, options.address));
  QUIRE_RETURN_IF_ERROR(check_is_node(nodes, own_addresses(), options.address));
  QUIRE_RETURN_IF_ERROR(check_room(nodes, static_cast<int>(options.environments.size()), options.cpus_per_rank));
  if (module.calls->join(options.address.c_str(), module.path.c_str(), why.out()) != kQuireRayDone)
    return unavailable("the Ray cluster at {} cannot be joined: {}", options.address, why.words());
  return {};
}

// The version that the package beside a library has: SITE/ray/cpp/lib/libray_api.so and SITE/ray_cpp-2.49.2.dist-info.
std::string version_beside(const fs::path& library) {
  const std::string prefix = "ray_cpp-";
  const std::string suffix = ".dist-info";
  const fs::path packages = library.parent_path().parent_path().parent_path().parent_path();
  for (const fs::path& folder : folders_in(packages, prefix)) {
    const std::string name = folder.filename().string();
    if (name.ends_with(suffix)) return name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  }
  return "";
}

Result<std::string> of_right_version(const fs::path& library) {
  const std::string version = version_beside(library);
  if (version.empty() || version == ray_version()) return library.string();
  return invalid_argument("{} is of Ray {}, and this quire was built for {}: {}", library.string(), version,
                          ray_version(), how_to_install());
}

}  // namespace

const char* ray_version() {
  return QUIRE_RAY_VERSION;
}

Result<std::unique_ptr<RayRanks>> RayRanks::start(const RayRanksOptions& options) {
  QUIRE_CHECK(!options.environments.empty() && !options.program.empty());
  if (options.cpus_per_rank < 1) return invalid_argument("a rank on a Ray cluster takes one core or more");
  QUIRE_ASSIGN_OR_RETURN(const Module module, load_module(options));
  QUIRE_RETURN_IF_ERROR(join_cluster(module, options));
  auto ranks = std::make_unique<StartedRanks>(*module.calls, options);
  QUIRE_RETURN_IF_ERROR(ranks->start_all());
  return std::unique_ptr<RayRanks>(std::move(ranks));
}

Result<std::string> find_ray_api(const RayEnvironment& environment, const std::string& root) {
  const fs::path name = "libray_api.so";
  std::error_code error;
  if (!environment.ray_cpp.empty()) {
    const fs::path named = environment.ray_cpp;
    for (const fs::path& path : {named, named / name, named / "lib" / name, named / "cpp/lib" / name}) {
      if (fs::is_regular_file(path, error)) return of_right_version(fs::absolute(path, error));
    }
    return not_found("QUIRE_RAY_CPP is {}, and there is no {}", environment.ray_cpp, name.string());
  }
  for (const fs::path& packages : python_packages(environment.python, root)) {
    const fs::path path = packages / "ray/cpp/lib" / name;
    if (fs::is_regular_file(path, error)) return of_right_version(path);
  }
  return not_found(
      "no Python in PATH, in VIRTUAL_ENV or of the system has Ray's C++ library: {}, or say in QUIRE_RAY_CPP "
      "where {} lies",
      how_to_install(), name.string());
}

Result<std::string> ray_address(const std::string& asked, const std::string& temporary) {
  std::string address = asked;
  if (asked.empty() || asked == "auto") {
    const fs::path path = fs::path(temporary.empty() ? "/tmp" : temporary) / "ray/ray_current_cluster";
    if (!std::getline(std::ifstream(path), address) || address.empty())
      return not_found(
          "no Ray cluster was started on this host ({} says none): `ray start --head`, or say in RAY_ADDRESS where one "
          "is",
          path.string());
  }
  const size_t colon = address.rfind(':');
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  if (address.find("://") != std::string::npos || colon == 0 || port.empty() || port.size() > 5 ||
      port.find_first_not_of("0123456789") != std::string::npos) {
    return invalid_argument(
        "RAY_ADDRESS \"{}\" is not the address of a cluster's head, host:port as `ray start --head` prints it",
        address);
  }
  return address;
}

}  // namespace quire::comm
