#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "ops/cuda/link_group.h"
#include "ops/cuda/nccl.h"
#include "ops/cuda/peer_sums.h"

namespace quire::ops::cuda {
namespace {

constexpr int kLeastNccl = 21800;  // 2.18.0: what is called can be captured in graphs

class NcclLink final : public DeviceLink {
 public:
  NcclLink(const NcclFunctions& functions, void* communicator, int version, cudaStream_t stream,
           Result<std::unique_ptr<PeerSums>> small_sums)
      : f_(functions),
        communicator_(communicator),
        stream_(stream),
        description_(fmt::format(
            "NCCL {}.{}.{}, small sums {}", version / 10000, version / 100 % 100, version % 100,
            small_sums.ok() ? "out of each other's memory" : fmt::format("too ({})", small_sums.status().message()))) {
    if (small_sums.ok()) small_sums_ = std::move(*small_sums);
  }
  // Whoever destroys it has waited for the stream, or is one whose others are gone: nothing is waited for.
  ~NcclLink() override { f_.abort(communicator_); }

  const std::string& description() const override { return description_; }
  Status status() const override { return status_; }

  void all_reduce(float* values, int64_t count) override {
    if (count == 0 || !status_.ok()) return;
    if (adds_in_order(values, count)) return small_sums_->add_up(values, count);
    note(f_.all_reduce(values, values, static_cast<size_t>(count), NcclFunctions::kFloat32, NcclFunctions::kSum,
                       communicator_, stream_),
         "a sum");
  }

  bool adds_in_order(const float* values, int64_t count) const override {
    return small_sums_ != nullptr && small_sums_->takes(values, count);
  }

  void transfer(std::span<const Transfer> transfers) override {
    if (transfers.empty() || !status_.ok()) return;
    note(f_.group_start(), "messages");
    for (const Transfer& one : transfers) {
      if (one.bytes == 0) continue;
      note(one.sends ? f_.send(one.data, one.bytes, NcclFunctions::kUint8, one.peer, communicator_, stream_)
                     : f_.receive(one.data, one.bytes, NcclFunctions::kUint8, one.peer, communicator_, stream_),
           "a message");
    }
    note(f_.group_end(), "messages");
  }

 private:
  void note(int result, const char* what) {
    if (result == 0 || !status_.ok()) return;
    status_ = unavailable("{}: {}: {}", description_, what, f_.error_string(result));
  }

  const NcclFunctions f_;
  void* const communicator_;
  const cudaStream_t stream_;
  const std::string description_;
  std::unique_ptr<PeerSums> small_sums_;  // nullptr: NCCL has all
  Status status_;
};

}  // namespace

Result<std::unique_ptr<DeviceLink>> make_nccl_link(const Result<NcclFunctions>& functions, const LinkGroup& group,
                                                   cudaStream_t stream, bool peer_sums) {
  int version = 0;
  if (functions.ok() && functions->get_version(&version) != 0) version = 0;
  QUIRE_ASSIGN_OR_RETURN(const std::vector<int> versions, hear(group, version));
  for (size_t rank = 0; rank < versions.size(); ++rank) {
    if (versions[rank] == versions[0] && versions[rank] >= kLeastNccl) continue;
    if (!functions.ok()) return functions.status();
    return unavailable("rank {} has NCCL's version {} (0: none), rank 0 has {}: all must have one, of {} or later",
                       rank, versions[rank], versions[0], kLeastNccl);
  }
  struct Begun {
    NcclId id = {};
    int result = 0;
  } begun;
  if (group.rank == 0) begun.result = functions->get_id(&begun.id);
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Begun> all, hear(group, begun));
  if (all[0].result != 0) return unavailable("NCCL does not begin: {}", functions->error_string(all[0].result));
  void* communicator = nullptr;
  const int result = functions->init_rank(&communicator, group.size, all[0].id, group.rank);
  QUIRE_ASSIGN_OR_RETURN(const std::vector<int> results, hear(group, result));
  for (size_t rank = 0; rank < results.size(); ++rank) {
    if (results[rank] == 0) continue;
    if (result == 0) functions->abort(communicator);
    return unavailable("NCCL does not begin on rank {}: {}", rank, functions->error_string(results[rank]));
  }
  auto small_sums = peer_sums ? PeerSums::begin(group, stream)
                              : Result<std::unique_ptr<PeerSums>>(unavailable("as disable_custom_all_reduce says"));
  return std::unique_ptr<DeviceLink>(
      std::make_unique<NcclLink>(*functions, communicator, version, stream, std::move(small_sums)));
}

}  // namespace quire::ops::cuda
