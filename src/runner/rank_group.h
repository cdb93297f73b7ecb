// The ranks that compute one model together, as one of them sees them: stages of a pipeline, the ranks of each of which
// have the parts of its layers' weights. Rank by rank of the first stage, then of the second, and so on.
#pragma once

#include "comm/communicator.h"
#include "nn/shard.h"

namespace quire::runner {

struct RankGroup {
  comm::Communicator* all = nullptr;     // nullptr: this process is the whole model
  comm::Communicator* tensor = nullptr;  // of this stage; nullptr: its weights are whole
  nn::Stage stage;
  int num_on_host = 0;  // ranks that share this host's memory; 0: all

  int shard_size() const { return tensor == nullptr ? 1 : tensor->size(); }
  // The rank that has the logits, and chooses the tokens: the first of the last stage.
  int sampling_rank() const { return (stage.count - 1) * shard_size(); }
  bool samples() const { return all == nullptr || all->rank() == sampling_rank(); }
  // Who has the same part of the stage before and of the one after.
  int previous() const { return all->rank() - shard_size(); }
  int next() const { return all->rank() + shard_size(); }

  // The first failure of either.
  Status status() const {
    if (tensor != nullptr && !tensor->status().ok()) return tensor->status();
    return all == nullptr ? Status() : all->status();
  }
};

}  // namespace quire::runner
