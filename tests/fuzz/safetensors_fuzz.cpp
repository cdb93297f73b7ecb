// The safetensors container: every tensor of what opens lies in the file and is as large as its shape says.
#include "checkpoint/safetensors_file.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  const fuzz::CpuLimit limit;
  const fuzz::AlignedCopy copy(fuzz::Input(data, size).rest());
  const auto file = checkpoint::SafetensorsFile::parse(copy.bytes());
  if (!file.ok()) {
    fuzz::check_error(file.status());
    return 0;
  }
  int64_t bytes = 0;
  for (const checkpoint::SafetensorsTensor& tensor : file->tensors) {
    fuzz::touch(tensor.view.data, tensor.view.bytes());
    bytes += tensor.view.bytes();
    const auto address = reinterpret_cast<uintptr_t>(tensor.view.data);
    QUIRE_CHECK(tensor.view.bytes() == 0 || address % static_cast<uintptr_t>(info(tensor.view.dtype).block_bytes) == 0);
  }
  QUIRE_CHECK(bytes < static_cast<int64_t>(size));
  return 0;
}
