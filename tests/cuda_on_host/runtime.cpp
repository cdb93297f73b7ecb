// Memory, copies, streams and events of the emulated device.
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <set>
#include <utility>
#include <vector>

#include "device_memory.h"
#include "idle_card.h"
#include "num_cards.h"
#include "refused_capture.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) static_cast<void>(0)
#endif

struct CUgraph_st {
  std::vector<std::function<cudaError_t()>> calls;
};
struct CUgraphExec_st {
  CUgraph_st graph;
};
struct CUstream_st {
  std::unique_ptr<CUgraph_st> captured;  // what was called since the capture began; nullptr: calls are done
  bool invalid = false;                  // a call of the capture was refused
  bool late = false;                     // calls wait until they are waited for
  std::deque<std::function<cudaError_t()>> waiting;
  uint64_t num_called = 0;  // of a late stream
};
struct CUevent_st {
  std::chrono::steady_clock::time_point at;
  cudaStream_t late = nullptr;  // where it was recorded, behind so many calls
  uint64_t num_called = 0;
  bool of_download = false;  // an idle card's: what was asked for last
};

namespace quire::cuda_on_host {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kAlignment = 512;
constexpr size_t kRedZone = 512;  // behind every piece; nobody may write there
constexpr uint8_t kGarbage = 0xff;
constexpr uint8_t kRedByte = 0xa5;
constexpr size_t kLargestFill = size_t{16} << 20;

size_t round_up(size_t bytes, size_t to) {
  return (bytes + to - 1) / to * to;
}
size_t taken(size_t bytes) {
  return round_up(bytes, kAlignment) + kRedZone;
}

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "cuda_on_host: %s\n", what);
  std::abort();
}

}  // namespace

std::mutex& card_mutex() {
  static std::mutex mutex;
  return mutex;
}

DeviceMemory& DeviceMemory::instance() {
  static DeviceMemory& memory = *new DeviceMemory;
  return memory;
}

DeviceMemory::DeviceMemory() {
  protect_ = !idle_;
  void* reserved = mmap(nullptr, bytes_ + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) die("no addresses for the card's memory");
  base_ = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<uintptr_t>(reserved), kHugePage));
  // The fewer pages, the cheaper it is to protect them twice a launch.
  madvise(base_, bytes_, MADV_HUGEPAGE);
}

void DeviceMemory::allow(bool on) {
  if (begun_ > 0 && mprotect(base_, round_up(begun_, kHugePage), on ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
    die("mprotect failed");
}

void DeviceMemory::reach(bool on) {
  if (protect_) allow(on);
  reached_ = on;
}

void DeviceMemory::set_protected(bool protect) {
  protect_ = protect;
  allow(!protect);
}

bool DeviceMemory::holds_piece(const void* at, size_t bytes) const {
  auto* address = static_cast<uint8_t*>(const_cast<void*>(at));
  auto piece = pieces_.upper_bound(address);
  if (piece == pieces_.begin()) return false;
  --piece;
  const auto offset = static_cast<size_t>(address - piece->first);
  return offset <= piece->second && bytes <= piece->second - offset;
}

void* DeviceMemory::allocate(size_t bytes) {
  // The first gap that is large enough.
  uint8_t* place = base_;
  for (const auto& [begin, size] : pieces_) {
    if (static_cast<size_t>(begin - place) >= taken(bytes)) break;
    place = begin + taken(size);
  }
  if (bytes > bytes_ || static_cast<size_t>(base_ + bytes_ - place) < taken(bytes)) return nullptr;
  begun_ = std::max(begun_, static_cast<size_t>(place - base_) + taken(bytes));
  pieces_.emplace(place, bytes);
  used_ += taken(bytes);
  const bool protect = protect_;
  if (!protect) allow(true);  // what has just begun
  if (idle_) return place;
  const Open open;
  ASAN_UNPOISON_MEMORY_REGION(place, taken(bytes));
  if (bytes <= kLargestFill) std::memset(place, kGarbage, bytes);
  std::memset(place + bytes, kRedByte, taken(bytes) - bytes);
  ASAN_POISON_MEMORY_REGION(place + bytes, taken(bytes) - bytes);
  return place;
}

bool DeviceMemory::release(void* memory) {
  const auto piece = pieces_.find(static_cast<uint8_t*>(memory));
  if (piece == pieces_.end()) return false;
  const auto [begin, bytes] = *piece;
  if (idle_) {
    used_ -= taken(bytes);
    pieces_.erase(piece);
    return true;
  }
  const Open open;
  ASAN_UNPOISON_MEMORY_REGION(begin, taken(bytes));
  for (const uint8_t* at = begin + bytes; at < begin + taken(bytes); ++at) {
    if (*at != kRedByte) die("something was written past the end of device memory");
  }
  // Whole huge pages go back to the system.
  const uintptr_t first = round_up(reinterpret_cast<uintptr_t>(begin), kHugePage);
  const uintptr_t last = (reinterpret_cast<uintptr_t>(begin) + taken(bytes)) / kHugePage * kHugePage;
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  ASAN_POISON_MEMORY_REGION(begin, taken(bytes));
  used_ -= taken(bytes);
  pieces_.erase(piece);
  return true;
}

void make_card_idle(size_t memory_bytes) {
  DeviceMemory::begin_idle(memory_bytes);
}
std::vector<Call>& calls() {
  static auto& all = *new std::vector<Call>;
  return all;
}
void note(Call::Kind kind) {
  calls().push_back({kind, std::chrono::steady_clock::now()});
}
namespace {

bool is_captured(cudaStream_t stream) {
  return stream != nullptr && stream->captured != nullptr;
}
bool is_late(cudaStream_t stream) {
  return stream != nullptr && stream->late;
}

// Does what was called on a late stream, up to its call number `end`.
void catch_up(cudaStream_t stream, uint64_t end) {
  while (!stream->waiting.empty() && stream->num_called - stream->waiting.size() < end) {
    const auto call = std::move(stream->waiting.front());
    stream->waiting.pop_front();
    if (call() != cudaSuccess) die("a call on a late stream failed");
  }
}

std::atomic<int> calls_until_refusal = -1;  // of captured ones; -1: none is refused

bool is_refused(cudaStream_t stream) {
  if (!is_captured(stream)) return false;
  if (calls_until_refusal >= 0 && calls_until_refusal-- == 0) stream->invalid = true;  // of one stream alone
  return stream->invalid;
}

std::atomic<int> num_cards{1};
thread_local int current_card = 0;

std::set<const void*>& loaded_kernels() {
  static auto& kernels = *new std::set<const void*>;
  return kernels;
}

}  // namespace

void have_cards(int count) {
  num_cards = count;
}

void refuse_captured_call(int number) {
  calls_until_refusal = number;
}

void load(const void* kernel) {
  if (DeviceMemory::idle()) return;
  const std::lock_guard lock(card_mutex());
  loaded_kernels().insert(kernel);
}
bool refuses_launch(cudaStream_t stream, const void* kernel) {
  if (!is_captured(stream) || DeviceMemory::idle()) return false;
  const std::lock_guard lock(card_mutex());
  if (!loaded_kernels().contains(kernel)) stream->invalid = true;
  return is_refused(stream);
}

bool takes_down(cudaStream_t stream) {
  return is_captured(stream) || is_late(stream);
}
void take_down(cudaStream_t stream, std::function<cudaError_t()> call) {
  if (is_captured(stream)) return stream->captured->calls.push_back(std::move(call));
  stream->waiting.push_back(std::move(call));
  ++stream->num_called;
}

namespace {

// Memory of the host that the card was told of: bytes by address.
std::map<uintptr_t, size_t>& pinned() {
  static auto& regions = *new std::map<uintptr_t, size_t>;
  return regions;
}

bool is_pinned(const void* at) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  auto region = pinned().upper_bound(address);
  if (region == pinned().begin()) return false;
  --region;
  return address - region->first < region->second;
}

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// Whether [at, at + bytes) may be what `kind` says it is.
bool fits(const void* at, size_t bytes, bool on_device, bool any) {
  const DeviceMemory& memory = DeviceMemory::instance();
  if (memory.holds(at)) return (any || on_device) && memory.holds_piece(at, bytes);
  return any || !on_device || is_pinned(at);
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return cudaSuccess;
  if (DeviceMemory::idle()) {
    const bool down = kind == cudaMemcpyDeviceToHost;
    if (down) std::memset(to, 0, bytes);
    note(down ? Call::kDownload : Call::kUpload);
    return cudaSuccess;
  }
  const std::lock_guard lock(card_mutex());
  const bool any = kind == cudaMemcpyDefault;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (!fits(to, bytes, to_device, any) || !fits(from, bytes, from_device, any)) return cudaErrorInvalidValue;
  const DeviceMemory::Open open;
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

thread_local int num_captures = 0;  // that this thread began and has not ended

// Does the call, or takes it down.
template <typename Call>
cudaError_t in_turn(cudaStream_t stream, Call call) {
  if (is_refused(stream)) return result(cudaErrorStreamCaptureInvalidated);
  if (!takes_down(stream)) return result(call());
  take_down(stream, call);
  return cudaSuccess;
}

}  // namespace

}  // namespace quire::cuda_on_host

using namespace quire::cuda_on_host;

void quire_cuda_on_host_protect(bool protect) {
  const std::lock_guard lock(card_mutex());
  DeviceMemory::instance().set_protected(protect);
}

// --- errors, the device

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "cudaErrorHostMemoryAlreadyRegistered";
    case cudaErrorHostMemoryNotRegistered:
      return "cudaErrorHostMemoryNotRegistered";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorIllegalState:
      return "cudaErrorIllegalState";
  }
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "part or all of the requested memory range is already mapped";
    case cudaErrorHostMemoryNotRegistered:
      return "pointer does not correspond to a registered memory region";
    case cudaErrorNotSupported:
      return "operation not supported";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorIllegalState:
      return "the operation cannot be performed in the present state";
  }
  return "unrecognized error code";
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return last_error;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = num_cards;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= num_cards) return result(cudaErrorInvalidDevice);
  current_card = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_card;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= num_cards) return result(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "the host, emulating a card");
  properties->totalGlobalMem = DeviceMemory::bytes();
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = 227 << 10;
  properties->sharedMemPerMultiprocessor = 228 << 10;
  properties->regsPerBlock = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->multiProcessorCount = 132;
  properties->major = 9;
  properties->minor = 0;
  properties->l2CacheSize = 50 << 20;
  properties->memoryBusWidth = 5120;
  properties->canMapHostMemory = 1;
  properties->unifiedAddressing = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device); error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = properties.maxThreadsPerBlock;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(properties.sharedMemPerBlock);
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = properties.warpSize;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = properties.maxThreadsPerMultiProcessor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(properties.sharedMemPerMultiprocessor);
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      return cudaSuccess;
  }
  return result(cudaErrorInvalidValue);
}
cudaError_t cudaDeviceSynchronize() {
  return cudaSuccess;
}

// --- memory

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const std::lock_guard lock(card_mutex());
  *free = DeviceMemory::instance().free_bytes();
  *total = DeviceMemory::bytes();
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (num_captures > 0) return result(cudaErrorStreamCaptureUnsupported);
  const std::lock_guard lock(card_mutex());
  *memory = bytes == 0 ? nullptr : DeviceMemory::instance().allocate(bytes);
  return result(bytes > 0 && *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaFree(void* memory) {
  const std::lock_guard lock(card_mutex());
  return result(memory == nullptr || DeviceMemory::instance().release(memory) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  if (num_captures > 0) return result(cudaErrorStreamCaptureUnsupported);
  *memory = std::aligned_alloc(4096, std::max<size_t>(bytes + 4095, 4096) / 4096 * 4096);
  if (*memory == nullptr) return result(cudaErrorMemoryAllocation);
  const std::lock_guard lock(card_mutex());
  pinned()[reinterpret_cast<uintptr_t>(*memory)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  return cudaHostAlloc(memory, bytes, cudaHostAllocDefault);
}
cudaError_t cudaFreeHost(void* memory) {
  const std::lock_guard lock(card_mutex());
  if (memory != nullptr && pinned().erase(reinterpret_cast<uintptr_t>(memory)) == 0)
    return result(cudaErrorInvalidValue);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  const std::lock_guard lock(card_mutex());
  if (memory == nullptr || bytes == 0 || DeviceMemory::instance().holds(memory)) return result(cudaErrorInvalidValue);
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const auto next = pinned().lower_bound(begin);
  if (is_pinned(memory) || (next != pinned().end() && next->first < begin + bytes))
    return result(cudaErrorHostMemoryAlreadyRegistered);
  pinned()[begin] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  const std::lock_guard lock(card_mutex());
  return result(pinned().erase(reinterpret_cast<uintptr_t>(memory)) == 1 ? cudaSuccess
                                                                         : cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  const std::lock_guard lock(card_mutex());
  if (!is_pinned(host)) return result(cudaErrorInvalidValue);
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  const std::lock_guard lock(card_mutex());
  void* pointer = const_cast<void*>(memory);
  if (DeviceMemory::instance().holds_piece(memory, 1)) {
    *attributes = {cudaMemoryTypeDevice, 0, pointer, nullptr};
  } else if (is_pinned(memory)) {
    *attributes = {cudaMemoryTypeHost, 0, pointer, pointer};
  } else {
    *attributes = {cudaMemoryTypeUnregistered, -1, nullptr, pointer};
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return result(copy(to, from, bytes, kind));
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return in_turn(stream, [=] { return copy(to, from, bytes, kind); });
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch) return result(cudaErrorInvalidValue);
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error =
        cudaMemcpyAsync(static_cast<uint8_t*>(to) + row * to_pitch,
                        static_cast<const uint8_t*>(from) + row * from_pitch, width, kind, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  const std::lock_guard lock(card_mutex());
  if (DeviceMemory::idle()) return cudaSuccess;
  if (!fits(memory, bytes, /*on_device=*/true, /*any=*/false)) return result(cudaErrorInvalidValue);
  const DeviceMemory::Open open;
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  return in_turn(stream, [=] { return cudaMemset(memory, value, bytes); });
}

// --- streams and events: all is done when a call returns, but what is called on late streams

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = new CUstream_st{.late = true};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (is_late(stream)) catch_up(stream, stream->num_called);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (is_captured(stream)) return result(cudaErrorStreamCaptureUnsupported);
  if (is_late(stream)) catch_up(stream, stream->num_called);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return cudaStreamSynchronize(stream);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->late == nullptr || event->late == stream) return cudaSuccess;
  return in_turn(stream, [from = event->late, end = event->num_called] {
    catch_up(from, end);
    return cudaSuccess;
  });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument) {
  return in_turn(stream, [=] {
    function(argument);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr || is_captured(stream)) return result(cudaErrorIllegalState);
  stream->captured = std::make_unique<CUgraph_st>();
  stream->invalid = false;
  ++num_captures;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (!is_captured(stream)) return result(cudaErrorIllegalState);
  std::unique_ptr<CUgraph_st> captured = std::move(stream->captured);
  --num_captures;
  if (stream->invalid) return result(cudaErrorStreamCaptureInvalidated);
  *graph = captured.release();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraphExec_st{*graph};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (DeviceMemory::idle()) {
    note(Call::kReplay);
    return cudaSuccess;
  }
  for (const auto& call : executable->graph.calls) {
    if (const cudaError_t error = in_turn(stream, call); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return cudaEventCreate(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->at = std::chrono::steady_clock::now();
  event->late = is_late(stream) ? stream : nullptr;
  event->num_called = is_late(stream) ? stream->num_called : 0;
  if (DeviceMemory::idle()) {
    event->of_download = !calls().empty() && calls().back().kind == Call::kDownload;
    note(Call::kRecordEvent);
  }
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (DeviceMemory::idle()) note(event->of_download ? Call::kWaitForDownload : Call::kWait);
  if (event->late != nullptr) catch_up(event->late, event->num_called);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->at - begin->at).count();
  return cudaSuccess;
}
