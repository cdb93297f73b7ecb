// GGUF: the container, then all that is made of it: configuration, plan of the model's memory, tokenizer, template.
#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_file.h"
#include "ops/reference/reference_backend.h"
#include "runner/memory_planner.h"
#include "tests/fuzz/fuzz.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace {

// A file in memory with a path of its own.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes) : descriptor_(memfd_create("fuzz", 0)) {
    QUIRE_CHECK(descriptor_ >= 0);
    QUIRE_CHECK(write(descriptor_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return fmt::format("/proc/self/fd/{}", descriptor_); }

 private:
  int descriptor_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  const fuzz::CpuLimit limit;
  const fuzz::AlignedCopy copy(fuzz::Input(data, size).rest());
  const auto file = checkpoint::GgufFile::parse(copy.bytes());
  if (file.ok()) {
    int64_t bytes = 0;
    for (const checkpoint::GgufTensor& tensor : file->tensors) {
      fuzz::touch(tensor.view.data, tensor.view.bytes());
      bytes += tensor.view.bytes();
    }
    QUIRE_CHECK(bytes < static_cast<int64_t>(size));
  } else {
    fuzz::check_error(file.status());
  }

  const MemoryFile mapped(copy.bytes());
  const auto opened = checkpoint::Checkpoint::open(mapped.path());
  if (!opened.ok()) {
    fuzz::check_error(opened.status());
    return 0;
  }
  QUIRE_CHECK(file.ok());
  const checkpoint::Checkpoint& checkpoint = **opened;
  if (const auto vocabulary = checkpoint.vocabulary()) {
    const auto tokenizer = text::Tokenizer::from_vocabulary(*vocabulary);
    if (tokenizer.ok()) {
      fuzz::check_tokenizer(**tokenizer);
    } else {
      fuzz::check_error(tokenizer.status());
    }
  }
  const auto parsed = text::ChatTemplate::parse(checkpoint.chat_template());
  if (!parsed.ok()) fuzz::check_error(parsed.status());

  static const std::unique_ptr<ops::Backend> backend = ops::make_reference_backend();
  const auto planned = runner::plan_model({}, checkpoint, *backend, int64_t{1} << 34);
  if (planned.ok()) {
    QUIRE_CHECK(planned->memory.weight_bytes > 0 && planned->memory.num_blocks > 0 && planned->memory.block_bytes > 0);
  } else {
    fuzz::check_error(planned.status());
  }
  return 0;
}
