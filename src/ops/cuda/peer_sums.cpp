#include "ops/cuda/peer_sums.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "ops/cuda/link_group.h"

namespace quire::ops::cuda {
namespace {

// A look takes some 0.5 us where the flag is the card's own memory: about a second.
constexpr int64_t kLooksOfTrial = 2'000'000;
constexpr int64_t kTrialNumbers = 4 * kSumBlocks * kSumThreads + 12;  // some blocks have two quads a thread

Status status_of(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();  // an answer, not a fault of what comes next
  return unavailable("{}: {}", what, cudaGetErrorString(error));
}

// How a rank fared, for all to hear.
struct Fared {
  bool well = true;
  char why[200] = {};
};
Fared fared(const Status& status) {
  Fared out{.well = status.ok()};
  const std::string_view why = status.ok() ? std::string_view() : std::string_view(status.message());
  std::copy_n(why.begin(), std::min(why.size(), sizeof(out.why) - 1), out.why);
  return out;
}

// The same on all ranks: that of the first that fared badly.
Status agree(const LinkGroup& group, const Status& own) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Fared> all, hear(group, fared(own)));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].well) return unavailable("rank {}: {}", rank, all[rank].why);
  }
  return {};
}

// What rank q gives as number i: no two alike, and such that another order has other bits.
float trial_number(int rank, int64_t i) {
  return static_cast<float>(i % 1000 + 1) * (rank == 1 ? 1e-4f : 0.37f * static_cast<float>(rank + 1));
}

}  // namespace

PeerSums::PeerSums(const LinkGroup& group, cudaStream_t stream) : stream_(stream) {
  sum_.rank = group.rank;
  sum_.size = group.size;
}

// Its own area stays until the process ends: another rank may still read it.
PeerSums::~PeerSums() {
  for (int rank = 0; rank < sum_.size; ++rank) {
    if (rank != sum_.rank && sum_.areas[rank] != nullptr) (void)cudaIpcCloseMemHandle(sum_.areas[rank]);
  }
}

Status PeerSums::open(const std::vector<cudaIpcMemHandle_t>& handles) {
  for (int rank = 0; rank < sum_.size; ++rank) {
    if (rank == sum_.rank) continue;
    void* area = nullptr;
    QUIRE_RETURN_IF_ERROR(
        status_of(cudaIpcOpenMemHandle(&area, handles[static_cast<size_t>(rank)], cudaIpcMemLazyEnablePeerAccess),
                  "the other cards' memory cannot be reached"));
    sum_.areas[rank] = static_cast<PeerArea*>(area);
  }
  return {};
}

Status PeerSums::try_a_sum() {
  constexpr size_t kBytes = kTrialNumbers * sizeof(float);
  float* values = nullptr;
  QUIRE_RETURN_IF_ERROR(status_of(cudaMalloc(&values, kBytes), "memory for a trial"));
  std::vector<float> numbers(kTrialNumbers);
  int64_t wrong = 0;
  Status done;
  // More than there are halves.
  for (int round = 0; round < 4 && done.ok(); ++round) {
    for (int64_t i = 0; i < kTrialNumbers; ++i) numbers[static_cast<size_t>(i)] = trial_number(sum_.rank, i + round);
    cudaMemcpyAsync(values, numbers.data(), kBytes, cudaMemcpyHostToDevice, stream_);
    PeerSum trial = sum_;
    trial.values = values;
    trial.count = kTrialNumbers;
    trial.most_looks = kLooksOfTrial;
    add_up_peers(trial, stream_);
    cudaMemcpyAsync(numbers.data(), values, kBytes, cudaMemcpyDeviceToHost, stream_);
    done = status_of(cudaStreamSynchronize(stream_), "a trial");
    for (int64_t i = 0; i < kTrialNumbers; ++i) {
      float expected = trial_number(0, i + round);
      for (int rank = 1; rank < sum_.size; ++rank) expected += trial_number(rank, i + round);
      wrong += numbers[static_cast<size_t>(i)] != expected ? 1 : 0;
    }
  }
  cudaFree(values);
  QUIRE_RETURN_IF_ERROR(done);
  if (wrong > 0) return unavailable("{} of {} sums were wrong in a trial", wrong, 4 * kTrialNumbers);
  return {};
}

Result<std::unique_ptr<PeerSums>> PeerSums::begin(const LinkGroup& group, cudaStream_t stream) {
  if (group.size > kMostPeers)
    return invalid_argument("{} ranks: supported are {} that reach each other's memory", group.size, kMostPeers);
  std::unique_ptr<PeerSums> sums(new PeerSums(group, stream));
  void* area = nullptr;
  cudaIpcMemHandle_t handle = {};
  Status own = status_of(cudaMalloc(&area, sizeof(PeerArea)), "memory to lay open");
  // All zeros before any other may write there: a fill is not done when its call returns.
  if (own.ok()) own = status_of(cudaMemsetAsync(area, 0, sizeof(PeerArea), stream), "memory to lay open");
  if (own.ok()) own = status_of(cudaStreamSynchronize(stream), "memory to lay open");
  if (own.ok()) own = status_of(cudaIpcGetMemHandle(&handle, area), "memory to lay open");
  sums->sum_.areas[group.rank] = static_cast<PeerArea*>(area);
  QUIRE_RETURN_IF_ERROR(agree(group, own));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<cudaIpcMemHandle_t> handles, hear(group, handle));
  QUIRE_RETURN_IF_ERROR(agree(group, sums->open(handles)));
  QUIRE_RETURN_IF_ERROR(agree(group, sums->try_a_sum()));
  return sums;
}

// Each rank reads the whole message of every other: with more of them NCCL's ways, which send less, pay earlier.
bool PeerSums::takes(const float* values, int64_t count) const {
  const int64_t most = sum_.size == 2 ? kMostSumBytes : sum_.size <= 4 ? kMostSumBytes / 2 : kMostSumBytes / 4;
  return count % 4 == 0 && count * static_cast<int64_t>(sizeof(float)) <= most &&
         reinterpret_cast<uintptr_t>(values) % sizeof(float4) == 0;
}

void PeerSums::add_up(float* values, int64_t count) {
  QUIRE_CHECK(takes(values, count));
  PeerSum sum = sum_;
  sum.values = values;
  sum.count = count;
  add_up_peers(sum, stream_);
}

}  // namespace quire::ops::cuda
