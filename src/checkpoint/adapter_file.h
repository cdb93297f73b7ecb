// An adapter as somebody else stored it: PEFT's folder (adapter_config.json, adapter_model.safetensors) or llama.cpp's
// GGUF. Read into memory whole, for it may be replaced while it is served.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/peft_config.h"
#include "tensor/tensor.h"

namespace quire::checkpoint {

struct AdapterFile {
  // W' = W + scale * up * down for one module.
  struct LowRank {
    std::string module;  // Hugging Face's name, without ".weight"
    TensorView down;     // [rank, in_features]; of an embedding in GGUF [in_features, rank]
    TensorView up;       // [out_features, rank]
    TensorView lengths;  // of DoRA [out_features]: what rows of W' have in place of their own; else no data
    double scale = 1;
    bool embeds = false;           // in_features are ids
    bool down_transposed = false;  // [in_features, rank]
    // Of a parameter that has so many experts' matrices, which `module` is then the name of: down is [num_stacked *
    // rank, in_features], an expert's rows together; up is [out_features, rank * num_stacked], column r * num_stacked +
    // e that of expert e. PEFT before 0.19 took a matrix [out, in] for one of
    // out inputs: down is then [num_stacked * rank, out_features] and up [in_features, rank * num_stacked], of the
    // matrix turned. 0: of a module.
    int64_t num_stacked = 0;
  };
  // A weight that stands for the base's.
  struct Saved {
    std::string module;
    TensorView weight;
    std::vector<int32_t> ids;  // of some rows alone: of which tokens; empty: of all
  };

  AdapterKind kind = AdapterKind::kLowRank;
  std::vector<LowRank> low_rank;    // by module
  std::vector<Saved> saved;         // by module
  std::vector<Saved> base_copies;   // of the base's own weights, which PEFT writes beside an embedding's factors
  TensorView prompt;                // [virtual tokens, ...] of the other kinds
  std::optional<PeftConfig> peft;   // nullopt: GGUF
  bool rotates_neighbours = false;  // rows of q and k are in the order in which GGUF has llama's
  std::string base_model;           // for people; may be empty
  std::string architecture;         // of GGUF; else empty
  size_t bytes = 0;                 // of the files
  // The same for the same bytes: which version of an adapter it is.
  uint64_t revision = 0;

  std::shared_ptr<const void> memory;  // the tensors'

  // `path`: PEFT's folder, or a .gguf file. Errors: not_found; data_loss for malformed files; invalid_argument for what
  // contradicts itself; unimplemented for what is not built, by name (QALoRA; pickles). Messages name the file.
  // `allocator`, of the host: whose memory the weights' file is read into; nullptr: memory of its own.
  static Result<std::shared_ptr<const AdapterFile>> open(const std::filesystem::path& path,
                                                         std::shared_ptr<Allocator> allocator = nullptr);
  // The same of bytes: what `path` above would hold.
  static Result<std::shared_ptr<const AdapterFile>> from_peft(std::string_view config,
                                                              std::span<const std::byte> weights,
                                                              std::shared_ptr<const void> memory);
  static Result<std::shared_ptr<const AdapterFile>> from_gguf(std::span<const std::byte> file,
                                                              std::shared_ptr<const void> memory);
};

}  // namespace quire::checkpoint
