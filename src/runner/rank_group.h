// The ranks that compute one model together, as one of them sees them: stages of a pipeline, the ranks of each of which
// have the parts of its layers' weights. Rank by rank of the first stage, then of the second, and so on. What layers
// compute lies in the memory of their backend, which `tensor` and `states` take it from (device_communicator.h).
#pragma once

#include "comm/communicator.h"
#include "nn/shard.h"

namespace quire::runner {

struct RankGroup {
  comm::Communicator* all = nullptr;     // of the host's numbers; nullptr: this process is the whole model
  comm::Communicator* tensor = nullptr;  // of this stage; nullptr: its weights are whole
  comm::Communicator* states = nullptr;  // all of them, for what stages hand on; nullptr: `all`
  nn::Stage stage;
  int num_on_host = 0;  // ranks that share this host's memory; 0: all

  comm::Communicator& between_stages() const { return states == nullptr ? *all : *states; }
  bool are_several() const { return all != nullptr && all->size() > 1; }
  int shard_size() const { return tensor == nullptr ? 1 : tensor->size(); }
  // The rank that has the logits, and chooses the tokens: the first of the last stage.
  int sampling_rank() const { return (stage.count - 1) * shard_size(); }
  bool samples() const { return all == nullptr || all->rank() == sampling_rank(); }
  // As the sampling rank is of the last.
  bool is_first_of_stage() const { return tensor == nullptr || tensor->rank() == 0; }
  // Who has the same part of the stage before and of the one after.
  int previous() const { return all->rank() - shard_size(); }
  int next() const { return all->rank() + shard_size(); }

  // The first failure of any.
  Status status() const {
    if (tensor != nullptr && !tensor->status().ok()) return tensor->status();
    if (states != nullptr && !states->status().ok()) return states->status();
    return all == nullptr ? Status() : all->status();
  }
};

}  // namespace quire::runner
