#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "checkpoint/mapped_file.h"
#include "checkpoint/open_formats.h"
#include "checkpoint/quantization_config.h"

namespace quire::checkpoint {
namespace {

bool begins_with(std::span<const std::byte> bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

Result<std::shared_ptr<const Checkpoint>> open_file(const std::filesystem::path& path) {
  if (is_pickle_name(path)) return pickle_refused(path);
  if (path.extension() == ".safetensors") {
    return invalid_argument(
        "{}: a safetensors file does not say what model it is; give the directory that holds it "
        "and its config.json",
        path.string());
  }
  QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file, MappedFile::open(path));
  // Pickles under another name: PyTorch's zip archive, and the bare protocol.
  if (begins_with(file->bytes(), "PK\x03\x04") || begins_with(file->bytes(), "\x80\x02")) return pickle_refused(path);
  auto checkpoint = open_gguf(std::move(file), path);
  if (!checkpoint.ok()) return checkpoint.status().with_prefix(path.string() + ": ");
  return checkpoint;
}

}  // namespace

bool is_pickle_name(const std::filesystem::path& path) {
  constexpr auto kExtensions = std::to_array<std::string_view>({".bin", ".pt", ".pth", ".ckpt", ".pickle", ".pkl"});
  const std::string extension = path.extension().string();
  return std::find(kExtensions.begin(), kExtensions.end(), extension) != kExtensions.end();
}

Status pickle_refused(const std::filesystem::path& path) {
  return unimplemented(
      "{}: a Python pickle, which is refused because reading one runs the code in it; convert the "
      "model to safetensors",
      path.string());
}

const CheckpointTensor* Checkpoint::declared(const ParameterSpec& spec) const {
  const CheckpointTensor* tensor = find(spec.name);
  return tensor != nullptr && tensor->view.shape == spec.shape ? tensor : nullptr;
}

const SentenceFiles& Checkpoint::sentence_files() const {
  static const SentenceFiles kNone;
  return kNone;
}

Result<std::shared_ptr<const Checkpoint>> Checkpoint::open(const std::string& path, LoadFormat format) {
  if (path.empty()) return invalid_argument("the model's path is empty");
  try {
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(path, error);
    if (status.type() == std::filesystem::file_type::not_found) {
      return not_found("{}: no such file or directory", path);
    }
    if (format == LoadFormat::kDummy) return open_dummy(path);
    if (std::filesystem::is_directory(status)) return open_directory(path);
    return open_file(path);
  } catch (const std::bad_alloc&) {
    return resource_exhausted("{}: there is no memory to read the file's headers", path);
  } catch (const std::filesystem::filesystem_error& exception) {
    return invalid_argument("{}: {}", path, exception.code().message());
  }
}

std::string Checkpoint::describe_weights() const {
  return quantization() != nullptr ? describe(*quantization()) : dtype_summary();
}

}  // namespace quire::checkpoint
