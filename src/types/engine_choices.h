// What a user chooses by a word, and the one place that knows the words: those of the command line, of --config files
// and of whoever has text where EngineConfig wants a type.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "types/activation_dtype.h"
#include "types/pooling.h"

namespace quire {

// What the files are, or random weights of the model that config.json describes.
enum class LoadFormat : uint8_t { kAuto, kDummy };

// What weights that are stored in 16 or 32 bits are converted to while they are loaded; kAuto: nothing.
enum class WeightDType : uint8_t { kAuto, kFloat32, kFloat16, kBFloat16 };

// What they are rounded to while they are loaded (docs/models.md), or what the checkpoint's weights are stored in,
// which is then checked.
enum class Quantization : uint8_t {
  kNone,
  kInt8,
  kInt4,
  kFp8,  // also of a checkpoint that is stored so
  kAwq,
  kGptq,
  kCompressedTensors,
  kBitsandbytes,
  kModelopt,
  kTorchao,
  kHqq,
  kFbgemmFp8,
  kMxfp4,
  kQuark,
};

// What adapters' factors are held in; kAuto: as they are stored.
enum class LoraDType : uint8_t { kAuto, kFloat32, kFloat16, kBFloat16 };

// kAuto: float16; float32 with float32 weights or activations.
enum class KvCacheDType : uint8_t { kAuto, kFloat32, kFloat16, kBFloat16, kFp8E4M3, kFp8E5M2, kInt8 };

// What happens to a preempted sequence's KV blocks. kAuto: whichever is estimated to be quicker.
enum class PreemptionMode : uint8_t { kRecompute, kSwap, kAuto };

enum class SchedulingPolicy : uint8_t { kFcfs, kPriority };

// Which kernels compute attention on a card: quire's own, FlashInfer's for any card from compute capability 8.0 on, or
// those of FlashAttention-3 for Hopper (docs/cuda.md). What was asked for takes what it has kernels for; the rest is
// quire's own.
enum class AttentionBackend : uint8_t { kAuto, kNative, kFlashInfer, kFa3 };

// Who guesses tokens ahead (docs/speculation.md). kNone: only requests that bring their own prediction are speculated
// on.
enum class SpeculativeMethod : uint8_t { kNone, kNgram, kSuffix, kDraftModel, kEagle, kEagle3, kMtp, kMedusa, kDflash };

// When a guess is taken (sampling/guess.h). kExact: when it is what is drawn without it. kRejection: as often as its
// distribution asks for. kTypical: when it is likely enough.
enum class AcceptanceMethod : uint8_t { kExact, kRejection, kTypical };

// What a model is served for. kAuto: what its files say it was made for.
enum class Runner : uint8_t { kAuto, kGenerate, kPooling };

// Of Runner::kPooling: what is made of a model. kAuto: scores where it has a classifying head, else vectors. kNone:
// only what it was made for.
enum class Convert : uint8_t { kAuto, kNone, kEmbed, kClassify };

// The instruction set of a CPU's kernels. kAuto: the best that machine and build have.
enum class Isa : uint8_t { kAuto, kPortable, kAvx2, kAvx512, kAvx512Bf16 };

// Where a model is computed: in the engine's process, in processes of its own, in those that MPI has started, or in
// those that a Ray cluster starts (docs/distributed.md). kAuto: in this one, unless there are to be several.
enum class DistributedBackend : uint8_t { kAuto, kUni, kMp, kMpi, kRay };

// What computes. kAuto: the first card, if there is one.
struct DeviceChoice {
  enum class Kind : uint8_t { kAuto, kCpu, kCuda };
  Kind kind = Kind::kAuto;
  int card = 0;  // of kCuda

  static constexpr DeviceChoice cpu() { return {.kind = Kind::kCpu}; }
  static constexpr DeviceChoice cuda(int card = 0) { return {.kind = Kind::kCuda, .card = card}; }
  friend bool operator==(const DeviceChoice&, const DeviceChoice&) = default;
};

// The choice that a word stands for; of any type above and of ActivationDType. Some choices have several words ("half"
// is "float16"); name() gives the first. A DeviceChoice is "auto", "cpu", "cuda" (card 0) or "cuda:N".
// Errors: invalid_argument, with EngineConfig's name of the field, what was found and all that there is.
template <typename Choice>
Result<Choice> parse_choice(std::string_view text);

std::string_view name(LoadFormat choice);
std::string_view name(WeightDType choice);
std::string_view name(Quantization choice);
std::string_view name(ActivationDType choice);
std::string_view name(LoraDType choice);
std::string_view name(KvCacheDType choice);
std::string_view name(PreemptionMode choice);
std::string_view name(SchedulingPolicy choice);
std::string_view name(AttentionBackend choice);
std::string_view name(Isa choice);
std::string_view name(DistributedBackend choice);
std::string_view name(Runner choice);
std::string_view name(Convert choice);
std::string_view name(PoolingType choice);
std::string_view name(SpeculativeMethod choice);
std::string_view name(AcceptanceMethod choice);
std::string name(DeviceChoice choice);

}  // namespace quire
