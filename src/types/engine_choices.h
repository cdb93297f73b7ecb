// What a user chooses by a word, and the one place that knows the words: those of the command line, of --config files
// and of whoever has text where EngineConfig wants a type.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "types/activation_dtype.h"

namespace quire {

// What the files are, or random weights of the model that config.json describes.
enum class LoadFormat : uint8_t { kAuto, kDummy };

// What weights that are stored in 16 or 32 bits are converted to while they are loaded; kAuto: nothing.
enum class WeightDType : uint8_t { kAuto, kFloat32, kFloat16, kBFloat16 };

// What they are rounded to while they are loaded (docs/models.md).
enum class Quantization : uint8_t { kNone, kInt8, kInt4, kFp8 };

// kAuto: float16; float32 with float32 weights or activations.
enum class KvCacheDType : uint8_t { kAuto, kFloat32, kFloat16, kBFloat16, kFp8E4M3, kFp8E5M2, kInt8 };

// What happens to a preempted sequence's KV blocks. kAuto: whichever is estimated to be quicker.
enum class PreemptionMode : uint8_t { kRecompute, kSwap, kAuto };

enum class SchedulingPolicy : uint8_t { kFcfs, kPriority };

// Which kernels compute attention on a card: quire's own, FlashInfer's for any card from compute capability 8.0 on, or
// those of FlashAttention-3 for Hopper (docs/cuda.md). What was asked for takes what it has kernels for; the rest is
// quire's own.
enum class AttentionBackend : uint8_t { kAuto, kNative, kFlashInfer, kFa3 };

// The instruction set of a CPU's kernels. kAuto: the best that machine and build have.
enum class Isa : uint8_t { kAuto, kPortable, kAvx2, kAvx512, kAvx512Bf16 };

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
std::string_view name(KvCacheDType choice);
std::string_view name(PreemptionMode choice);
std::string_view name(SchedulingPolicy choice);
std::string_view name(AttentionBackend choice);
std::string_view name(Isa choice);
std::string name(DeviceChoice choice);

}  // namespace quire
