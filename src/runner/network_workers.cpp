#include "runner/network_workers.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/hashing.h"
#include "base/numa.h"
#include "base/thread_pool.h"
#include "runner/model_fingerprint.h"

namespace quire::runner {
namespace {

using comm::Tag;

class NetworkChannel final : public WorkerChannel {
 public:
  NetworkChannel(comm::NetworkGroup& group, const WorkerSegment::Shape& shape, std::string host)
      : group_(group), shape_(shape), host_(std::move(host)) {}

  int rank() const override { return group_.rank(); }
  WorkerSegment::Shape shape() const override { return shape_; }
  Result<std::string> read_order() override { return group_.read(0, Tag::kOrder, spin_); }
  Status write_result(std::string_view message) override { return group_.write(0, Tag::kResult, std::string(message)); }
  Result<std::string> ask(std::string_view question) override {
    QUIRE_RETURN_IF_ERROR(group_.write(0, Tag::kQuestion, std::string(question)));
    return group_.read(0, Tag::kAnswer, spin_);
  }
  Result<std::string> read_adapter_order() override { return group_.read(0, Tag::kAdapterOrder); }
  Status write_adapter_report(std::string_view message) override {
    return group_.write(0, Tag::kAdapterReport, std::string(message));
  }
  bool goes_on() const override { return group_.goes_on(); }
  void end(std::string_view reason) override {
    group_.end(fmt::format("rank {} (host {}): {}", rank(), host_, reason));
  }
  void beat() override {
    constexpr int kEvery = 5;  // of those that could be sent: one in 0.25 s
    if (rank() != 0 && ++beats_ % kEvery == 1) (void)group_.write(0, Tag::kBeat, {});
  }

  Result<RankGroup> join(const EngineConfig& config, std::chrono::microseconds spin) override {
    spin_ = spin;
    std::vector<int> members(static_cast<size_t>(group_.size()));
    std::iota(members.begin(), members.end(), 0);
    all_ = comm::make_network_communicator(group_, {.members = members, .number = 0, .spin = spin});
    const int size = config.tensor_parallel_size;
    const int stage = rank() / size;
    RankGroup ranks{.all = all_.get(), .stage = {stage, config.pipeline_parallel_size}};
    QUIRE_ASSIGN_OR_RETURN(ranks.num_on_host, count_host());
    if (size == 1) return ranks;
    std::vector<int> of_stage(members.begin() + stage * size, members.begin() + (stage + 1) * size);
    stage_ = comm::make_network_communicator(group_, {.members = std::move(of_stage), .number = 1, .spin = spin});
    ranks.tensor = stage_.get();
    return ranks;
  }

 private:
  Result<int> count_host() {
    const uint64_t own = hash_bytes(host_.data(), host_.size(), 0);
    std::vector<uint64_t> all(static_cast<size_t>(group_.size()));
    all_->all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
    QUIRE_RETURN_IF_ERROR(all_->status());
    return static_cast<int>(std::ranges::count(all, own));
  }

  comm::NetworkGroup& group_;
  const WorkerSegment::Shape shape_;
  const std::string host_;
  std::chrono::microseconds spin_{0};
  int beats_ = 0;
  std::unique_ptr<comm::Communicator> all_;
  std::unique_ptr<comm::Communicator> stage_;  // nullptr: of one rank
};

// An order as it would be were every rank's own the same.
std::string shared_settings(EngineConfig config) {
  config.model.clear();
  config.tokenizer.clear();
  config.cpu_affinity.clear();
  config.threads = 0;
  config.rank = 0;
  config.state_layers.clear();
  return encode_order(config);
}

Result<WorkerHello> make_hello(const EngineConfig& config, const NetworkSelf& self, const MakeBackend& make_backend) {
  WorkerHello hello{.program = self.program,
                    .host = self.host,
                    .model = config.model,
                    .tokenizer = config.tokenizer,
                    .settings = shared_settings(config),
                    .threads = config.threads};
  EngineConfig one_thread = config;
  one_thread.threads = 1;
  one_thread.cpu_affinity.clear();
  QUIRE_ASSIGN_OR_RETURN(const auto backend, make_backend(one_thread));
  hello.kernels = backend->description();
  hello.kernels.resize(std::min(hello.kernels.size(), hello.kernels.rfind(", ")));
  QUIRE_ASSIGN_OR_RETURN(hello.fingerprint, sampled_model_fingerprint(config.model));
  QUIRE_ASSIGN_OR_RETURN(hello.cores, parse_core_list(config.cpu_affinity));
  if (hello.cores.empty()) hello.cores = usable_cores();
  hello.cores = cores_by_node(hello.cores, numa_nodes());
  return hello;
}

std::string shown(std::span<const WorkerHello> hellos, size_t rank) {
  return fmt::format("rank {} (host {})", rank, hellos[rank].host);
}

}  // namespace

Result<NetworkSelf> this_process() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) return internal_error("this host has no name");
  constexpr const char* kThisProgram = "/proc/self/exe";
  std::ifstream file(kThisProgram, std::ios::binary);
  if (!file) return not_found("{}: cannot be read", kThisProgram);
  uint64_t digest = 0;
  std::vector<char> piece(size_t{1} << 20);
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    digest = hash_bytes(piece.data(), static_cast<size_t>(file.gcount()), digest);
  }
  return NetworkSelf{.program = fmt::format("{:016x}", digest), .host = host.data()};
}

Status run_network_worker(comm::NetworkGroup& group, const EngineConfig& config, const NetworkSelf& self,
                          const MakeBackend& make_backend) {
  NetworkChannel channel(group, {config.pipeline_parallel_size, config.tensor_parallel_size}, self.host);
  const auto failed = [&](Status why) {
    channel.end(why.message());
    return why;
  };
  const auto hello = make_hello(config, self, make_backend);
  if (!hello.ok()) return failed(hello.status());
  const Status said = channel.write_result(encode(*hello));
  if (!channel.goes_on()) return {};
  if (!said.ok()) return failed(said);
  Status ended = run_worker(channel, make_backend);
  return ended.ok() || !channel.goes_on() ? ended : failed(std::move(ended));
}

Status check_same(std::span<const WorkerHello> hellos) {
  const WorkerHello& first = hellos.front();
  for (size_t rank = 1; rank < hellos.size(); ++rank) {
    const WorkerHello& other = hellos[rank];
    if (other.program != first.program) {
      return invalid_argument("{} runs another program than {}: install the same quire on all hosts",
                              shown(hellos, rank), shown(hellos, 0));
    }
    if (other.settings != first.settings) {
      return invalid_argument("{} was started with other flags than {}: start all ranks with one command line",
                              shown(hellos, rank), shown(hellos, 0));
    }
    if (other.fingerprint != first.fingerprint) {
      return invalid_argument("{} has another model in {} than {} in {}: copy one of them to all hosts",
                              shown(hellos, rank), other.model, shown(hellos, 0), first.model);
    }
    if (other.kernels != first.kernels) {
      return invalid_argument(
          "{} computes with other kernels ({}) than {} ({}), whose bits are others: choose --isa that all have",
          shown(hellos, rank), other.kernels, shown(hellos, 0), first.kernels);
    }
  }
  return {};
}

int32_t num_on_host_of(std::span<const WorkerHello> hellos, int rank) {
  const std::string& host = hellos[static_cast<size_t>(rank)].host;
  return static_cast<int32_t>(std::ranges::count(hellos, host, &WorkerHello::host));
}

EngineConfig order_of_rank(const EngineConfig& config, std::span<const WorkerHello> hellos, int rank) {
  const WorkerHello& own = hellos[static_cast<size_t>(rank)];
  EngineConfig order = config;
  order.rank = rank;
  order.model = own.model;
  order.tokenizer = own.tokenizer;
  order.threads = own.threads;
  // Those who may use the same cores of one host divide them. Who was bound to cores of its own has them all.
  int32_t before = 0;
  int32_t sharing = 0;
  for (size_t other = 0; other < hellos.size(); ++other) {
    if (hellos[other].host != own.host || hellos[other].cores != own.cores) continue;
    ++sharing;
    if (other < static_cast<size_t>(rank)) ++before;
  }
  order.cpu_affinity = part_of_cores(own.cores, before, sharing);
  if (order.cpu_affinity.empty()) order.threads = std::max(own.threads, 1);
  return order;
}

}  // namespace quire::runner
