// A low-rank adapter in memory, in the form in which one model's layers add it. Immutable; shared by the requests that
// use it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/adapter_file.h"
#include "checkpoint/checkpoint.h"
#include "nn/adaptable_layer.h"
#include "ops/backend.h"
#include "tensor/keeping_allocator.h"
#include "types/model_config.h"

namespace quire::runner {

// What adapters are made for. Of several ranks each reads the same file and keeps what is added to its own products.
struct AdapterHost {
  nn::AdaptableLayers layers;
  ModelConfig config;
  bool rotates_neighbours = false;  // rows of q and k are in the order in which GGUF has llama's
  int32_t max_rank = 0;             // of low-rank adapters; 0: there are none
  int32_t max_virtual_tokens = 0;   // of soft prompts; 0: there are none
  const checkpoint::Checkpoint* base =
      nullptr;  // what DoRA takes lengths of, without which it is refused; must outlive make()
  // Of the host's memory: that adapters are made with, and keep, and that files are read with. nullptr: the backend's;
  // memory of their own.
  std::shared_ptr<KeepingAllocator> allocator = nullptr;
  std::shared_ptr<Allocator> file_allocator = nullptr;
  std::optional<DType> dtype;  // F32, F16, BF16 that factors are held in; nullopt: as they are stored
  // Of one rank of several: heads of keys and values, and layers, that it has. nullopt: all.
  std::optional<nn::Range> kv_heads = {};
  std::optional<nn::Range> own_layers = {};
};

// Whether q and k of this checkpoint lie so. PEFT's adapters, and those of the other order, are turned while they load.
bool rotates_neighbours(const checkpoint::Checkpoint& checkpoint, const ModelConfig& config);

class Adapter {
 public:
  // Errors: data_loss and invalid_argument naming the module (missing, surplus, of another shape, with values that are
  // no numbers, of a rank over the limit); resource_exhausted. Thread-safe: the backend gives memory and nothing more.
  static Result<std::shared_ptr<const Adapter>> make(const checkpoint::AdapterFile& file, const AdapterHost& host,
                                                     ops::Backend& backend);
  // The same in two steps. On a device with memory of its own what read() gives is in the host's: it has no place yet,
  // and is added to nothing before it has one.
  static Result<std::shared_ptr<Adapter>> read(const checkpoint::AdapterFile& file, const AdapterHost& host,
                                               ops::Backend& backend);
  bool has_place() const { return memory_.data() != nullptr || has_place_elsewhere_; }
  // Takes bytes() of the device's memory; false: there are none. REQUIRES: !has_place(); the allocator outlives this.
  bool take_place(Allocator& allocator);
  // Copies all of it there, beside the steps, and lets go of the host's. Errors: resource_exhausted. REQUIRES:
  // take_place() has been true, once; nobody is given this before it returns.
  Status upload(ops::Backend& backend);

  // What stands for an adapter whose numbers other processes have: it adds to nothing, and has no place before
  // take_place_elsewhere() has been true.
  struct Description {
    int64_t bytes = 0;
    int32_t rank = 0;
    int32_t num_virtual_tokens = 0;
    uint64_t revision = 0;
  };
  struct Elsewhere {
    std::function<Result<bool>()> take_place;  // has them give it a place; false: one of them has no room yet
    std::function<void()> let_go;              // when nobody has it any more
  };
  static std::shared_ptr<Adapter> elsewhere(const Description& description, Elsewhere there);
  bool is_elsewhere() const { return take_place_elsewhere_ != nullptr; }
  // REQUIRES: is_elsewhere().
  Result<bool> take_place_elsewhere();

  // What one of all products (no embedding, no head) takes at most; nullopt as in AdapterHost. in_table: with what
  // kernels find it by, where the device has memory of its own.
  static int64_t most_bytes(const nn::AdaptableLayers& layers, int32_t rank, std::optional<DType> dtype, bool in_table);

  // nullptr: it adds nothing there. `expert`: of kExperts.
  const ops::LowRankFactors* factors(const nn::AdaptableLayer& layer, int32_t expert = 0) const;
  bool adapts(const nn::AdaptableLayer& layer) const { return !layers_[static_cast<size_t>(layer.index)].empty(); }
  // On a device with memory of its own: factors by AdaptableLayer::entry, as ops::LowRankRows::of_token has them; those
  // of a soft prompt are its embeddings alone, the embedding's.
  const ops::LowRankFactors* table() const { return table_; }
  // A bit for each layer by its index: those that have factors there, on whatever rank.
  const std::vector<uint64_t>& adapted_layers() const { return adapted_layers_; }

  // Of a soft prompt its embeddings, a row each, as an embedding that replaces the base's; nullptr: it is none.
  const ops::LowRankFactors* prompt() const { return prompt_.down != nullptr ? &prompt_ : nullptr; }
  int32_t num_virtual_tokens() const { return num_virtual_tokens_; }
  int32_t prompt_layer() const { return prompt_layer_; }  // by index: the embedding of tokens
  // Whether its virtual tokens are keys and values of every layer: floats, [tokens, kv heads, head_dim].
  bool gives_keys() const { return !keys_.empty(); }
  const float* keys(size_t layer) const { return keys_[layer]; }
  const float* values(size_t layer) const { return values_[layer]; }

  int64_t bytes() const {
    return is_elsewhere() ? bytes_elsewhere_ : static_cast<int64_t>(has_place() ? memory_.bytes() : image_.size());
  }
  int32_t rank() const { return rank_; }           // the largest
  uint64_t revision() const { return revision_; }  // of the files

 private:
  friend class AdapterMaker;
  Adapter() = default;

  // Of the image: what table() says, with what it points to.
  int64_t table_bytes() const;
  void write_table();

  struct Factors {
    ops::LowRankFactors factors;
    std::vector<ops::LowRankPart> parts;
    std::vector<int32_t> only;
  };
  std::vector<std::vector<Factors>> layers_;  // by the layer's index: none, or one an expert
  ops::LowRankFactors prompt_;
  std::vector<const float*> keys_;  // by layer
  std::vector<const float*> values_;
  int32_t num_virtual_tokens_ = 0;
  int32_t prompt_layer_ = -1;
  std::vector<uint64_t> adapted_layers_;
  std::shared_ptr<Allocator> allocator_;  // of memory_; nullptr: somebody's who outlives this
  Buffer memory_;
  std::function<Result<bool>()> take_place_elsewhere_;  // none: its numbers are here
  bool has_place_elsewhere_ = false;
  int64_t bytes_elsewhere_ = 0;
  // Of a device with memory of its own:
  std::vector<int32_t> first_entries_;  // by layer, and behind the last
  std::vector<uint8_t> image_;          // what its memory is to have; empty when it has that
  size_t table_begin_ = 0;              // of the image
  const ops::LowRankFactors* table_ = nullptr;
  int32_t rank_ = 0;
  uint64_t revision_ = 0;
};

}  // namespace quire::runner
