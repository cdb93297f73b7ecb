#include "runner/model_fingerprint.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/hashing.h"

namespace quire::runner {
namespace {

// Raised when kernels or layers come to compute other bits, or blocks to lie otherwise in memory.
constexpr int kKeysAndValuesVersion = 1;

class Digest {
 public:
  void add(const void* data, size_t size) {
    first_ = hash_bytes(data, size, first_);
    second_ = hash_bytes(data, size, second_);
  }
  void add(std::string_view text) {
    const uint64_t size = text.size();
    add(&size, sizeof(size));
    add(text.data(), text.size());
  }
  std::string hex() const { return fmt::format("{:016x}{:016x}", first_, second_); }

 private:
  uint64_t first_ = 0x243F6A8885A308D3;
  uint64_t second_ = 0x13198A2E03707344;
};

Status add_file(const std::filesystem::path& path, Digest& digest) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found("{}: cannot be read", path.string());
  std::vector<char> piece(size_t{1} << 20);
  digest.add(path.filename().string());
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    digest.add(piece.data(), static_cast<size_t>(file.gcount()));
  }
  if (file.bad()) return data_loss("{}: cannot be read to its end", path.string());
  return {};
}

// Of a split model ("name-00001-of-00003.gguf") all parts; of a folder what weights and configuration lie in.
std::vector<std::filesystem::path> files_of(const std::string& model) {
  const std::filesystem::path path(model);
  std::error_code error;
  std::vector<std::filesystem::path> files;
  const bool is_folder = std::filesystem::is_directory(path, error);
  const std::string name = path.filename();
  const size_t part = name.find("-00001-of-");
  if (!is_folder && part == std::string::npos) return {path};
  for (const auto& entry : std::filesystem::directory_iterator(is_folder ? path : path.parent_path(), error)) {
    const std::string one = entry.path().filename();
    const std::string kind = entry.path().extension();
    const bool is_part = is_folder ? kind == ".json" || kind == ".safetensors" || kind == ".gguf"
                                   : one.starts_with(name.substr(0, part)) && kind == ".gguf";
    if (is_part && !entry.is_directory(error)) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

Status add_sample(const std::filesystem::path& path, Digest& digest) {
  constexpr int64_t kSamples = 64;
  constexpr int64_t kBytes = 4096;
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (!file || error) return not_found("{}: cannot be read", path.string());
  digest.add(fmt::format("{} {}", path.filename().string(), size));
  std::vector<char> piece(kBytes);
  for (int64_t i = 0; i <= kSamples; ++i) {
    const int64_t begin = std::max<int64_t>(0, size - kBytes) / kSamples * i;
    file.seekg(i == kSamples ? std::max<int64_t>(0, size - kBytes) : begin);
    file.read(piece.data(), kBytes);
    digest.add(piece.data(), static_cast<size_t>(file.gcount()));
    file.clear(file.rdstate() & ~(std::ios::eofbit | std::ios::failbit));
    if (file.bad()) return data_loss("{}: cannot be read to its end", path.string());
  }
  return {};
}

}  // namespace

Result<std::string> sampled_model_fingerprint(const std::string& model) {
  Digest digest;
  for (const std::filesystem::path& file : files_of(model)) QUIRE_RETURN_IF_ERROR(add_sample(file, digest));
  return digest.hex();
}

Result<std::string> model_fingerprint(const EngineConfig& config, const PlannedModel& planned,
                                      std::string_view kernels) {
  Digest digest;
  digest.add(fmt::format("version {}, {}, block size {}, kv {}, context {}, weights {} {} {}, activations {}",
                         kKeysAndValuesVersion, kernels, planned.memory.block_size, name(planned.kv_dtype),
                         planned.max_model_len, name(config.dtype), name(config.quantization), planned.config.dtype,
                         name(config.activation_dtype)));
  digest.add(fmt::format("attention {}, invariant {}", name(config.attention_backend), config.batch_invariant));
  for (size_t i = 0; i < planned.kv_layout.layers.size(); ++i) {
    const nn::KvLayerSpec& layer = planned.kv_layout.layers[i];
    const KvLayout::Place& place = planned.kv_layout.places[i];
    if (layer.state_size > 0) digest.add(fmt::format("state of {} and {}", layer.state_size, layer.state_floats()));
    digest.add(fmt::format("layer {} {} {} {} {}: {} {} {} {}", static_cast<int>(layer.kind), layer.num_kv_heads,
                           layer.key_dim, layer.window, name(layer.dtype), place.group, place.piece, place.keys,
                           place.values));
  }
  for (const KvLayout::Piece& piece : planned.kv_layout.pieces) {
    digest.add(fmt::format("piece {} {}", piece.bytes, piece.num_memories));
  }
  if (config.load_format == LoadFormat::kDummy) digest.add("weights by chance");
  for (const std::filesystem::path& file : files_of(config.model)) QUIRE_RETURN_IF_ERROR(add_file(file, digest));
  return digest.hex();
}

}  // namespace quire::runner
