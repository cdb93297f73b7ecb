// Where the card's time goes, kernel by kernel, at full speed and within graphs: a library that CUDA loads into a
// program, and that tells at the program's end of the last milliseconds of the card's work.
//
//     g++ -O2 -std=c++20 -shared -fPIC -I/usr/local/cuda/include scripts/cuda_check/kernel_times.cpp
//         -L/usr/local/cuda/lib64 -lcupti -o build/libkernel_times.so
//     CUDA_INJECTION64_PATH=build/libkernel_times.so KERNEL_TIMES_SKIP_MS=100 KERNEL_TIMES_MS=200
//         quire bench latency ...
//
// KERNEL_TIMES_SKIP_MS (0): so much before the end is left out, KERNEL_TIMES_MS (200): how much before that is told,
// KERNEL_TIMES_FILE (standard error): where to.
#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace {

struct Launch {
  uint64_t start;  // nanoseconds
  uint64_t end;
  std::string name;  // a line: mangled; a line: grid, registers and shared memory
};

// Until the process ends: CUPTI's threads may come late.
struct Record {
  std::mutex mutex;
  std::vector<Launch> launches;
};
Record& record() {
  static auto* one = new Record;
  return *one;
}

void give_buffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *size = size_t{8} << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *size));
  *max_records = 0;
}

void take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  CUpti_Activity* activity = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &activity) == CUPTI_SUCCESS) {
    if (activity->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(activity);
    char shape[128];
    std::snprintf(shape, sizeof(shape), "<%d, %d, %d by %d> %d registers, %d KiB", kernel->gridX, kernel->gridY,
                  kernel->gridZ, kernel->blockX, kernel->registersPerThread,
                  (kernel->dynamicSharedMemory + kernel->staticSharedMemory) >> 10);
    all.launches.push_back({kernel->start, kernel->end, std::string(kernel->name) + "\n" + shape});
  }
  std::free(buffer);
}

std::string readable(const std::string& name) {
  const size_t line = name.find('\n');
  int status = 0;
  char* text = abi::__cxa_demangle(name.substr(0, line).c_str(), nullptr, nullptr, &status);
  std::string result = status == 0 ? text : name.substr(0, line);
  std::free(text);
  for (const std::string_view noise : {"quire::ops::cuda::", "(anonymous namespace)::", "quire::ops::", "void "}) {
    for (size_t at; (at = result.find(noise)) != std::string::npos;) result.erase(at, noise.size());
  }
  constexpr size_t kLongest = 100;
  if (result.size() > kLongest) result.resize(kLongest);
  return result + " " + name.substr(line + 1);
}

double milliseconds(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atof(text) : otherwise;
}

// A kernel that is launched early waits for the one before it: what it adds is what lies behind the other's end.
struct Sum {
  int count = 0;
  double whole = 0;  // microseconds
  double added = 0;
};

void tell() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  if (all.launches.empty()) return;
  std::sort(all.launches.begin(), all.launches.end(),
            [](const Launch& a, const Launch& b) { return a.start < b.start; });
  const auto back = [](uint64_t from, double ms) { return from - std::min(from, static_cast<uint64_t>(ms * 1e6)); };
  const uint64_t last = back(all.launches.back().end, milliseconds("KERNEL_TIMES_SKIP_MS", 0));
  const uint64_t first = back(last, milliseconds("KERNEL_TIMES_MS", 200));
  std::map<std::string, Sum> sums;
  uint64_t begin = 0;
  uint64_t until = 0;
  double busy = 0;
  for (const Launch& launch : all.launches) {
    if (launch.start < first || launch.start > last) continue;
    if (begin == 0) begin = until = launch.start;
    Sum& sum = sums[launch.name];
    ++sum.count;
    sum.whole += static_cast<double>(launch.end - launch.start) / 1e3;
    if (launch.end <= until) continue;
    const double added = static_cast<double>(launch.end - std::max(until, launch.start)) / 1e3;
    sum.added += added;
    busy += added;
    until = launch.end;
  }
  std::vector<std::pair<std::string, Sum>> sorted(sums.begin(), sums.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second.added > b.second.added; });
  const char* path = std::getenv("KERNEL_TIMES_FILE");
  std::FILE* out = path != nullptr ? std::fopen(path, "w") : stderr;
  if (out == nullptr) return;
  const double all_us = std::max(1.0, static_cast<double>(until - begin) / 1e3);
  std::fprintf(out, "%.1f ms, of which some kernel runs %.1f\n%7s %7s %9s %9s\n", all_us / 1e3, busy / 1e3, "share",
               "calls", "us", "us added");
  constexpr size_t kMostLines = 45;
  for (size_t i = 0; i < std::min(kMostLines, sorted.size()); ++i) {
    const Sum& sum = sorted[i].second;
    std::fprintf(out, "%6.2f%% %7d %9.2f %9.2f  %s\n", 100 * sum.added / all_us, sum.count, sum.whole / sum.count,
                 sum.added / sum.count, readable(sorted[i].first).c_str());
  }
  if (path != nullptr) std::fclose(out);
}

}  // namespace

extern "C" int InitializeInjection() {
  record();
  if (cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS ||
      cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) {
    std::fprintf(stderr, "kernel_times: CUPTI does not record kernels here\n");
    return 1;
  }
  std::atexit(tell);
  return 1;
}
