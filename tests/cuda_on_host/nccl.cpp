// Sums in rings: a value's order begins at another rank in each part of a message, as it does with the real one. Ranks
// that do not make the same calls in the same order end the process.
#include "ops/cuda/nccl.h"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "nccl_on_host.h"

namespace quire::ops::cuda {
namespace {

std::atomic<bool> nccl_offered{false};
std::atomic<unsigned> nccl_refused{0};
std::atomic<int> num_sums{0};
std::atomic<int> num_messages{0};
std::atomic<uint64_t> num_ids{0};

[[noreturn]] void nccl_die(const char* what) {
  std::fprintf(stderr, "cuda_on_host: NCCL: %s\n", what);
  std::abort();
}

struct NcclGroup {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0;
  bool given_up = false;
  // Of the sum that all are at.
  std::vector<std::vector<float>> parts;
  int num_there = 0;
  int num_gone = 0;
  uint64_t num_done = 0;
  std::map<std::pair<int, int>, std::deque<std::vector<uint8_t>>> messages;  // by who sent them to whom
};

std::mutex groups_mutex;
std::map<uint64_t, std::shared_ptr<NcclGroup>> groups;

struct NcclRank {
  std::shared_ptr<NcclGroup> group;
  int rank = 0;
};

struct NcclTransfer {
  NcclRank* rank;
  void* data;
  size_t bytes;
  int peer;
  bool sends;
};
struct NcclWork {
  NcclRank* rank = nullptr;
  float* values = nullptr;  // of a sum
  size_t count = 0;
  std::vector<NcclTransfer> transfers;
};

thread_local bool nccl_in_group = false;
thread_local std::vector<NcclTransfer> nccl_grouped;
thread_local cudaStream_t nccl_stream = nullptr;

void do_sum(NcclRank& self, float* values, size_t count) {
  NcclGroup& group = *self.group;
  std::vector<float> own(count);
  cudaMemcpy(own.data(), values, count * sizeof(float), cudaMemcpyDeviceToHost);
  std::unique_lock lock(group.mutex);
  const uint64_t turn = group.num_done;
  group.parts[static_cast<size_t>(self.rank)] = own;
  if (++group.num_there == group.size) {
    group.changed.notify_all();
  } else {
    group.changed.wait(lock, [&] { return group.num_there == group.size || group.num_done != turn || group.given_up; });
  }
  if (group.given_up) return;
  for (size_t i = 0; i < count; ++i) {
    const size_t first = i * static_cast<size_t>(group.size) / count;
    float sum = 0;
    for (int q = 0; q < group.size; ++q) {
      const auto& part = group.parts[(first + static_cast<size_t>(q)) % static_cast<size_t>(group.size)];
      if (part.size() != count) nccl_die("ranks add up messages of unlike sizes");
      sum = q == 0 ? part[i] : sum + part[i];
    }
    own[i] = sum;
  }
  if (++group.num_gone == group.size) {
    group.num_there = group.num_gone = 0;
    ++group.num_done;
    group.changed.notify_all();
  } else {
    group.changed.wait(lock, [&] { return group.num_done != turn || group.given_up; });
  }
  lock.unlock();
  cudaMemcpy(values, own.data(), count * sizeof(float), cudaMemcpyHostToDevice);
  ++num_sums;
}

void do_transfers(const std::vector<NcclTransfer>& transfers) {
  for (const NcclTransfer& one : transfers) {
    if (!one.sends) continue;
    std::vector<uint8_t> bytes(one.bytes);
    cudaMemcpy(bytes.data(), one.data, one.bytes, cudaMemcpyDeviceToHost);
    NcclGroup& group = *one.rank->group;
    const std::lock_guard lock(group.mutex);
    group.messages[{one.rank->rank, one.peer}].push_back(std::move(bytes));
    group.changed.notify_all();
    ++num_messages;
  }
  for (const NcclTransfer& one : transfers) {
    if (one.sends) continue;
    NcclGroup& group = *one.rank->group;
    std::unique_lock lock(group.mutex);
    auto& from = group.messages[{one.peer, one.rank->rank}];
    group.changed.wait(lock, [&] { return !from.empty() || group.given_up; });
    if (from.empty()) continue;
    const std::vector<uint8_t> bytes = std::move(from.front());
    from.pop_front();
    lock.unlock();
    if (bytes.size() != one.bytes) nccl_die("a message has another size than it is received with");
    cudaMemcpy(one.data, bytes.data(), one.bytes, cudaMemcpyHostToDevice);
  }
}

// In its turn on the stream, also in a graph, which calls it again: the work stays.
int enqueue(NcclWork work, cudaStream_t stream) {
  auto* kept = new NcclWork(std::move(work));
  const auto run = [](void* opaque) {
    const auto& one = *static_cast<NcclWork*>(opaque);
    if (one.values != nullptr) do_sum(*one.rank, one.values, one.count);
    do_transfers(one.transfers);
  };
  return cudaLaunchHostFunc(stream, run, kept) == cudaSuccess ? 0 : 1;
}

int enqueue_transfer(const NcclTransfer& one, cudaStream_t stream) {
  if (!nccl_in_group) nccl_die("a message outside of a group");
  nccl_grouped.push_back(one);
  nccl_stream = stream;
  return 0;
}

constexpr NcclFunctions kNcclOnHost = {
    .get_version =
        [](int* version) {
          *version = 22703;
          return 0;
        },
    .get_id =
        [](NcclId* id) {
          const uint64_t number = ++num_ids;
          std::memcpy(id->bytes, &number, sizeof(number));
          return 0;
        },
    .init_rank =
        [](void** communicator, int size, NcclId id, int rank) {
          if ((nccl_refused >> rank & 1u) != 0) return 3;
          uint64_t number = 0;
          std::memcpy(&number, id.bytes, sizeof(number));
          const std::lock_guard lock(groups_mutex);
          auto& group = groups[number];
          if (group == nullptr) {
            group = std::make_shared<NcclGroup>();
            group->size = size;
            group->parts.resize(static_cast<size_t>(size));
          }
          if (group->size != size) nccl_die("ranks of groups of unlike sizes");
          *communicator = new NcclRank{group, rank};
          return 0;
        },
    .all_reduce =
        [](const void* in, void* out, size_t count, int type, int op, void* communicator, cudaStream_t stream) {
          if (in != out || type != NcclFunctions::kFloat32 || op != NcclFunctions::kSum) return 4;
          return enqueue({.rank = static_cast<NcclRank*>(communicator),
                          .values = static_cast<float*>(out),
                          .count = count,
                          .transfers = {}},
                         stream);
        },
    .send =
        [](const void* in, size_t count, int /*type*/, int peer, void* communicator, cudaStream_t stream) {
          return enqueue_transfer({static_cast<NcclRank*>(communicator), const_cast<void*>(in), count, peer, true},
                                  stream);
        },
    .receive =
        [](void* out, size_t count, int /*type*/, int peer, void* communicator, cudaStream_t stream) {
          return enqueue_transfer({static_cast<NcclRank*>(communicator), out, count, peer, false}, stream);
        },
    .group_start =
        [] {
          nccl_in_group = true;
          return 0;
        },
    .group_end =
        [] {
          nccl_in_group = false;
          return enqueue({.transfers = std::exchange(nccl_grouped, {})}, nccl_stream);
        },
    // What still waits for the others is let go. Works of graphs may name the rank: it stays.
    .abort =
        [](void* communicator) {
          NcclGroup& group = *static_cast<NcclRank*>(communicator)->group;
          const std::lock_guard lock(group.mutex);
          group.given_up = true;
          group.changed.notify_all();
          return 0;
        },
    .error_string = [](int result) { return result == 3 ? "internal error" : "invalid argument"; },
};

}  // namespace

void offer_nccl(bool offers) {
  nccl_offered = offers;
}
void refuse_nccl_on(unsigned ranks) {
  nccl_refused = ranks;
}
int nccl_sums() {
  return num_sums;
}
int nccl_messages() {
  return num_messages;
}

Result<NcclFunctions> load_nccl(const std::vector<std::string>& /*paths*/) {
  if (!nccl_offered) return unavailable("libnccl.so.2 was not found");
  return kNcclOnHost;
}

}  // namespace quire::ops::cuda
