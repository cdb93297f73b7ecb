#include "cli/ranks.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "cli/backend.h"
#include "cli/library_environment.h"
#include "cli/options.h"
#include "cli/worker_processes.h"
#include "comm/ray_ranks.h"
#include "comm/tcp_transport.h"
#include "comm/transport.h"
#include "runner/network_workers.h"

namespace quire::cli {
namespace {

constexpr const char* kMpiLibrary = "libquire_mpi.so";
// What a process is told that another one starts as a rank with the same command line.
constexpr const char* kRankVariable = "QUIRE_RANK";
constexpr const char* kMasterAddress = "QUIRE_RANK_MASTER_ADDR";
constexpr const char* kMasterPort = "QUIRE_RANK_MASTER_PORT";
constexpr const char* kRankParent = "QUIRE_RANK_PARENT";
// What every node is told by whoever starts it.
constexpr const char* kNodesSecret = "QUIRE_NODES_SECRET";

// One of these is set by whatever starts ranks: Open MPI's mpirun, Slurm's srun with PMIx or PMI-2.
bool was_started_as_a_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    if (!environment(name).empty()) return true;
  }
  return false;
}

// MPI's own threads take none of the process's signals.
class SignalsHeldBack {
 public:
  SignalsHeldBack() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsHeldBack() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeldBack(const SignalsHeldBack&) = delete;
  SignalsHeldBack& operator=(const SignalsHeldBack&) = delete;

 private:
  sigset_t before_{};
};

class MpiRanks final : public Ranks {
 public:
  explicit MpiRanks(std::unique_ptr<comm::Transport> transport) : group_(std::move(transport)) {}
  comm::NetworkGroup& group() override { return group_; }

 private:
  comm::NetworkGroup group_;
};

Result<std::unique_ptr<Ranks>> join_mpi(const EngineConfig& config) {
  if (!was_started_as_a_rank()) {
    const int ranks = std::max(config.num_ranks(), 2);
    return invalid_argument(
        "distributed_executor_backend \"mpi\": nobody has started this process as one of several. Start it as `mpirun "
        "-np {} quire serve MODEL --distributed-executor-backend mpi --tensor-parallel-size {}`, or with srun "
        "--mpi=pmix",
        ranks, ranks);
  }
  const SignalsHeldBack held;
  QUIRE_ASSIGN_OR_RETURN(auto transport, comm::open_mpi(kMpiLibrary));
  return std::unique_ptr<Ranks>(std::make_unique<MpiRanks>(std::move(transport)));
}

// With the program's name before them.
std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> arguments;
  for (size_t begin = 0; begin < all.size(); begin = all.find('\0', begin) + 1) arguments.emplace_back(&all[begin]);
  return arguments;
}

// Processes that this one has started as ranks: the same program with the same command line.
class StartedRanks {
 public:
  virtual ~StartedRanks() = default;  // waits until they have ended
  // The first that has ended, and how. From one thread at a time.
  virtual Status status() = 0;
  // Those that did not end by themselves are said in the log.
  virtual void tell_killed() = 0;
};

// Those of one node.
class LocalRanks final : public StartedRanks {
 public:
  // Errors: resource_exhausted.
  Status start(int first, int count) {
    const std::vector<std::string> arguments = own_command_line();
    for (int rank = first; rank < first + count; ++rank) {
      QUIRE_ASSIGN_OR_RETURN(auto process, start_again(arguments, {fmt::format("{}={}", kRankVariable, rank),
                                                                   fmt::format("{}={}", kRankParent, getpid())}));
      processes_.push_back({rank, std::move(process)});
    }
    return {};
  }
  ~LocalRanks() override {
    // They end by themselves when the group does.
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (std::chrono::steady_clock::now() < limit &&
           std::ranges::any_of(processes_, [](const Started& one) { return !one.process->ended(); })) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  Status status() override {
    for (const Started& one : processes_) {
      if (const auto how = one.process->ended())
        return unavailable("rank {}, a process of this node, {}", one.rank, *how);
    }
    return {};
  }
  void tell_killed() override {
    for (const Started& one : processes_) {
      const auto how = one.process->ended();
      if (how && how->starts_with("was killed")) log_error("rank {}, a process of this node, {}", one.rank, *how);
    }
  }

 private:
  struct Started {
    int rank;
    std::unique_ptr<runner::WorkerProcess> process;
  };
  std::vector<Started> processes_;
};

// Those of a Ray cluster's nodes.
class RayStarted final : public StartedRanks {
 public:
  explicit RayStarted(std::unique_ptr<comm::RayRanks> ray) : ray_(std::move(ray)) {}
  Status status() override { return ray_->status(); }
  void tell_killed() override {
    if (const Status status = ray_->status(); !status.ok()) log_error("{}", status.message());
  }

 private:
  const std::unique_ptr<comm::RayRanks> ray_;
};

class TcpRanks final : public Ranks {
 public:
  TcpRanks(std::unique_ptr<StartedRanks> started, std::unique_ptr<comm::Transport> transport)
      : started_(std::move(started)),
        group_(std::make_unique<comm::NetworkGroup>(std::move(transport))),
        watch_([this] { watch(); }) {}
  ~TcpRanks() override {
    stopping_ = true;
    watch_.join();
    // Connections are closed before anybody is told how the process ended.
    if (group_->is_lost()) started_->tell_killed();
    group_.reset();
  }
  comm::NetworkGroup& group() override { return *group_; }

 private:
  // How a process ended says more than that its connections are closed.
  void watch() {
    while (!stopping_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const Status status = started_->status();
      if (status.ok()) continue;
      if (group_->goes_on()) group_->end(status.message(), comm::NetworkGroup::How::kLost);
      return;
    }
  }

  std::unique_ptr<StartedRanks> started_;
  std::unique_ptr<comm::NetworkGroup> group_;
  std::atomic<bool> stopping_{false};
  std::thread watch_;
};

Status check_nodes(const EngineConfig& config, const NodeOptions& nodes) {
  const int32_t ranks = config.num_ranks();
  if (nodes.nnodes < 1 || nodes.node_rank < 0 || nodes.node_rank >= nodes.nnodes) {
    return invalid_argument("--node-rank {} of --nnodes {}: expected 0 to {}", nodes.node_rank, nodes.nnodes,
                            std::max(nodes.nnodes - 1, 0));
  }
  if (nodes.headless && nodes.node_rank == 0) {
    return invalid_argument("--headless: the first of --nnodes answers requests: leave it out, or give --node-rank");
  }
  if (nodes.nnodes == 1) return {};
  if (config.device.kind == DeviceChoice::Kind::kCuda) {
    return unimplemented("--nnodes {} with device \"{}\": cards of several hosts are not built yet: choose cpu",
                         nodes.nnodes, name(config.device));
  }
  if (config.distributed_executor_backend != DistributedBackend::kAuto &&
      config.distributed_executor_backend != DistributedBackend::kMp) {
    return invalid_argument("--nnodes {} with distributed_executor_backend \"{}\": for nodes choose mp", nodes.nnodes,
                            name(config.distributed_executor_backend));
  }
  if (config.data_parallel_size > 1) {
    return unimplemented(
        "--nnodes {} with data_parallel_size {}: the nodes compute one model; start a server for each engine",
        nodes.nnodes, config.data_parallel_size);
  }
  if (ranks % nodes.nnodes != 0) {
    return invalid_argument(
        "--nnodes {}: tensor_parallel_size {} and pipeline_parallel_size {} are {} ranks, which cannot be divided "
        "evenly between the nodes",
        nodes.nnodes, config.tensor_parallel_size, config.pipeline_parallel_size, ranks);
  }
  if (nodes.master_port < 1 || nodes.master_port > 65535) {
    return invalid_argument("--master-port {}: expected 1 to 65535", nodes.master_port);
  }
  const std::string secret = environment(kNodesSecret);
  QUIRE_ASSIGN_OR_RETURN(const bool is_here, comm::is_loopback(nodes.master_addr));
  constexpr size_t kShortestSecret = 16;
  if ((!is_here || !secret.empty()) && secret.size() < kShortestSecret) {
    return invalid_argument(
        "--master-addr {}: whoever reaches this port could be a rank. Set {} in the environment of every node to the "
        "same text of {} characters or more (openssl rand -hex 16)",
        nodes.master_addr, kNodesSecret, kShortestSecret);
  }
  return {};
}

// As which rank another process has started this one; -1: as none. Errors: invalid_argument by hand.
Result<int> told_rank(int32_t size) {
  const std::string text = environment(kRankVariable);
  if (text.empty()) return -1;
  int rank = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (end.ec != std::errc() || *end.ptr != '\0' || rank < 1 || rank >= size) {
    return invalid_argument("{}=\"{}\" in the environment: expected nothing, or a rank from 1 to {}", kRankVariable,
                            text, size - 1);
  }
  const std::string parent = environment(kRankParent);
  if (parent.empty()) return rank;  // Ray's, whose child this is
  // It lives as long as whoever started it: where that is killed, so is this, even while it is stopped.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || std::to_string(getppid()) != parent) {
    return invalid_argument("{} in the environment: it is set by the process that starts this one, not by hand",
                            kRankParent);
  }
  return rank;
}

Result<std::unique_ptr<Ranks>> join_nodes(const EngineConfig& config, const NodeOptions& nodes) {
  const int32_t size = config.num_ranks();
  const int32_t on_node = size / nodes.nnodes;
  const int32_t first = nodes.node_rank * on_node;
  QUIRE_ASSIGN_OR_RETURN(const int told, told_rank(size));
  const int rank = told >= 0 ? told : first;
  const auto port = static_cast<uint16_t>(nodes.master_port);
  const SignalsHeldBack held;
  auto local = std::make_unique<LocalRanks>();
  std::unique_ptr<comm::Transport> transport;
  comm::TcpGroup group = {.size = size, .secret = environment(kNodesSecret), .look = [&] { return local->status(); }};
  if (rank == 0) {
    QUIRE_ASSIGN_OR_RETURN(auto listener, comm::TcpListener::open(nodes.master_addr, port));
    QUIRE_RETURN_IF_ERROR(local->start(1, on_node - 1));
    if (nodes.nnodes > 1)
      log_info("rank 0 of {} waits for {} other nodes at {}:{}", size, nodes.nnodes - 1, nodes.master_addr, port);
    QUIRE_ASSIGN_OR_RETURN(transport, comm::lead_over_tcp(std::move(listener), group));
  } else {
    if (told < 0) QUIRE_RETURN_IF_ERROR(local->start(first + 1, on_node - 1));
    QUIRE_ASSIGN_OR_RETURN(transport, comm::join_over_tcp(nodes.master_addr, port, rank, group));
  }
  return std::unique_ptr<Ranks>(std::make_unique<TcpRanks>(std::move(local), std::move(transport)));
}

// Rank 0 starts the others on the cluster's nodes; they come to it over TCP.
Result<std::unique_ptr<Ranks>> lead_ray(const EngineConfig& config) {
  const int32_t size = config.num_ranks();
  if (size == 1) {
    return invalid_argument(
        "distributed_executor_backend \"ray\": tensor_parallel_size and pipeline_parallel_size are 1, so that there is "
        "nothing to start on other nodes: leave it out, or set one of them");
  }
  QUIRE_ASSIGN_OR_RETURN(const std::string ray_api, comm::find_ray_api(ray_environment()));
  QUIRE_ASSIGN_OR_RETURN(const std::string cluster,
                         comm::ray_address(environment("RAY_ADDRESS"), environment("RAY_TMPDIR")));
  std::string address = environment("QUIRE_HOST_IP");
  if (address.empty()) address = environment("VLLM_HOST_IP");
  if (address.empty()) {
    constexpr uint16_t kAnyPort = 9;
    const std::string host = cluster.substr(0, cluster.rfind(':'));
    QUIRE_ASSIGN_OR_RETURN(address, comm::own_address_towards(host, kAnyPort));
  }
  QUIRE_ASSIGN_OR_RETURN(auto listener, comm::TcpListener::open(address, 0));
  std::string secret;
  for (const uint8_t byte : comm::random_nonce()) secret += fmt::format("{:02x}", byte);
  std::vector<std::string> arguments = own_command_line();
  arguments.erase(arguments.begin());
  comm::RayRanksOptions options = {.ray_api = ray_api,
                                   .address = cluster,
                                   .cpus_per_rank = std::max(config.threads, 1),
                                   .program = std::filesystem::read_symlink("/proc/self/exe").string(),
                                   .arguments = std::move(arguments),
                                   .folder = std::filesystem::current_path().string(),
                                   .environments = {}};
  for (int rank = 1; rank < size; ++rank) {
    options.environments.push_back(
        {fmt::format("{}={}", kRankVariable, rank), fmt::format("{}={}", kMasterAddress, address),
         fmt::format("{}={}", kMasterPort, listener.port()), fmt::format("{}={}", kNodesSecret, secret)});
  }
  log_info("Ray at {} starts {} of {} ranks, with {} cores each", cluster, size - 1, size, options.cpus_per_rank);
  QUIRE_ASSIGN_OR_RETURN(auto ray, comm::RayRanks::start(options));
  auto started = std::make_unique<RayStarted>(std::move(ray));
  const comm::TcpGroup group = {.size = size, .secret = secret, .look = [&] { return started->status(); }};
  QUIRE_ASSIGN_OR_RETURN(auto transport, comm::lead_over_tcp(std::move(listener), group));
  return std::unique_ptr<Ranks>(std::make_unique<TcpRanks>(std::move(started), std::move(transport)));
}

Result<std::unique_ptr<Ranks>> join_ray(const EngineConfig& config) {
  const int32_t size = config.num_ranks();
  QUIRE_ASSIGN_OR_RETURN(const int rank, told_rank(size));
  const SignalsHeldBack held;
  if (rank < 0) return lead_ray(config);
  const comm::TcpGroup group = {.size = size, .secret = environment(kNodesSecret), .look = {}};
  const int port = std::atoi(environment(kMasterPort).c_str());
  QUIRE_ASSIGN_OR_RETURN(auto transport,
                         comm::join_over_tcp(environment(kMasterAddress), static_cast<uint16_t>(port), rank, group));
  return std::unique_ptr<Ranks>(std::make_unique<TcpRanks>(std::make_unique<LocalRanks>(), std::move(transport)));
}

}  // namespace

void add_node_options(CLI::App& app, NodeOptions& nodes) {
  constexpr const char* kGroup = "Processes";
  const bool serves = app.get_name() == "serve";  // whose short names are vLLM's
  app.add_option(serves ? "--nnodes,-n" : "--nnodes", nodes.nnodes,
                 "Nodes that divide the processes of one model; each is started with the same flags but --node-rank")
      ->group(kGroup)
      ->capture_default_str();
  app.add_option(serves ? "--node-rank,-r" : "--node-rank", nodes.node_rank,
                 "Which of the nodes this is; the first one, 0, does what the command says")
      ->group(kGroup)
      ->capture_default_str();
  app.add_option("--master-addr", nodes.master_addr,
                 "Address of the first node, where the others find it; beyond loopback QUIRE_NODES_SECRET is needed")
      ->group(kGroup)
      ->capture_default_str();
  if (serves)
    app.add_flag("--headless", nodes.headless, "This is not the first node, and answers no requests")->group(kGroup);
  app.add_option("--master-port", nodes.master_port, "Its port for the nodes")->group(kGroup)->capture_default_str();
}

Result<std::unique_ptr<Ranks>> join_ranks(const EngineConfig& config, const NodeOptions& nodes) {
  QUIRE_RETURN_IF_ERROR(check_nodes(config, nodes));
  if (!starts_elsewhere(config) && nodes.nnodes == 1) return std::unique_ptr<Ranks>();
  QUIRE_RETURN_IF_ERROR(validate(config));
  switch (config.distributed_executor_backend) {
    case DistributedBackend::kMpi:
      return join_mpi(config);
    case DistributedBackend::kRay:
      return join_ray(config);
    case DistributedBackend::kAuto:
    case DistributedBackend::kUni:
    case DistributedBackend::kMp:
      break;
  }
  return join_nodes(config, nodes);
}

Status run_as_rank(Ranks& ranks, const EngineConfig& config) {
  for (const int asks : {SIGTERM, SIGINT, SIGUSR1}) signal(asks, SIG_IGN);
  // What all of them would say the first says.
  if (log_level() == "debug" || log_level() == "info") QUIRE_CHECK(set_log_level("warning"));
  QUIRE_ASSIGN_OR_RETURN(const runner::NetworkSelf self, runner::this_process());
  QUIRE_RETURN_IF_ERROR(runner::run_network_worker(ranks.group(), config, self, make_rank_backend));
  return ranks.group().is_lost() ? ranks.group().status() : Status();
}

}  // namespace quire::cli
