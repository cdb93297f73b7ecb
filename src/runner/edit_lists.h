// What the device keeps of sequences whose logits it edits: their biases and the tokens that they have seen
// (ops/edit_logits.h). A list goes up as a whole when its sequence begins, comes back to find its place taken, or has
// outgrown it; after that the device counts the tokens itself.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ops/backend.h"
#include "runner/buddies.h"
#include "sampling/sequence_sampler.h"
#include "types/ids.h"

namespace quire::runner {

class EditLists {
 public:
  struct Limits {
    int64_t vocab_size = 0;
    int64_t max_model_len = 0;  // tokens of a sequence
    int64_t max_num_seqs = 0;   // rows of a step that are edited
    int64_t max_rows = 0;       // of them at once
  };
  // Of the device's memory: of max_num_seqs of the longest lists, but no more than 64 MiB, unless max_rows lists take
  // it.
  static int64_t device_bytes(const Limits& limits);

  // Takes the memory. The backend must outlive the lists.
  EditLists(ops::Backend& backend, const Limits& limits);
  bool has_memory() const { return memory_.data() != nullptr; }

  // Begins some rows that are edited at once: their lists stay until the next ones begin.
  void begin() { ++turn_; }
  // Puts into `edits` where the sequence's list is, what it is to count first, and its penalties. last_token: the last
  // that its sampler knows. drawn: where the device has the one behind it; below 0: nowhere. REQUIRES: at most max_rows
  // sequences since begin(), none twice.
  void add(SequenceId id, const sampling::SequenceSampler& sampler, TokenId last_token, int32_t drawn,
           ops::RowEdits& edits);
  // The sequence is no more, or has become another.
  void forget(SequenceId id);

  ops::ListedToken* device() { return memory_.as<ops::ListedToken>(); }
  int64_t size() const { return places_.size(); }  // entries
  // Whole lists that went up.
  int64_t num_uploaded() const { return num_uploaded_; }
  int64_t bytes_uploaded() const { return bytes_uploaded_; }

 private:
  struct List {
    Buddies::Place place;
    int64_t num_counted = 0;  // tokens of the answer that it has, when the device has done what it was told
    uint64_t turn = 0;        // the last that it was used in
  };

  void make_room(List& list, int64_t entries);
  void upload(List& list, const sampling::SequenceSampler& sampler);

  ops::Backend& backend_;
  const int64_t longest_;  // entries of a list
  Buddies places_;
  Buffer memory_;  // [places_.size()]
  std::unordered_map<SequenceId, List> lists_;
  std::vector<ops::ListedToken> entries_;  // of one list, on their way
  uint64_t turn_ = 0;
  int64_t num_uploaded_ = 0;
  int64_t bytes_uploaded_ = 0;
};

}  // namespace quire::runner
