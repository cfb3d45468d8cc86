// What kernels and copies of any CUDA program take, summed by name, and how long a stream has no kernel between two: a library that
// the driver loads into it.
//
//   g++ -O2 -std=c++20 -shared -fPIC -I CUDA/include -o libkernel_times.so tests/gpu/kernel_times.cpp -L CUDA/lib -l:libcupti.so.13
//   CUDA_INJECTION64_PATH=$PWD/libkernel_times.so NEAP_KERNEL_TIMES=times.jsonl neap train ...
//
// At least each second a line is appended for what has ended since: {name: [times, nanoseconds]}. kernel_times.py sums them up. A
// kernel costs the program about 1 us more.
#include <cupti.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace {

struct Sum {
  std::uint64_t times = 0, nanoseconds = 0;
};
std::mutex mutex;
std::map<std::string, Sum> sums;              // NOLINT: CUPTI calls plain functions
std::map<std::uint32_t, std::uint64_t> ends;  // of each stream's last kernel; NOLINT as above

void write_sums() {
  if (sums.empty()) return;
  const char* path = std::getenv("NEAP_KERNEL_TIMES");
  std::FILE* const out = std::fopen(path != nullptr ? path : "kernel_times.jsonl", "a");
  if (out == nullptr) return;
  const char* before = "{";
  for (const auto& [name, sum] : sums) {
    std::fprintf(out, R"(%s"%s": [%llu, %llu])", before, name.c_str(),
                 static_cast<unsigned long long>(sum.times),
                 static_cast<unsigned long long>(sum.nanoseconds));
    before = ", ";
  }
  std::fprintf(out, "}\n");
  std::fclose(out);
  sums.clear();
}

void add(const char* name, std::uint64_t from, std::uint64_t to) {
  Sum& sum = sums[name];
  ++sum.times;
  sum.nanoseconds += to - from;
}

// The time behind the kernel before it on its stream: short where the device only starts the next one, long where it waits for
// the program, copies or the end of a phase.
void add_gap(std::uint32_t stream, std::uint64_t from, std::uint64_t to) {
  std::uint64_t& end = ends[stream];
  if (end != 0 && from > end) {
    const std::uint64_t gap = from - end;
    const char* name = gap < 5'000     ? "gap of less than 5 us"
                       : gap < 20'000  ? "gap of less than 20 us"
                       : gap < 200'000 ? "gap of less than 200 us"
                                       : "gap of 200 us or more";
    add(name, end, from);
  }
  end = std::max(end, to);
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, size_t* size, size_t* most_records) {
  *size = 256 << 10;  // filled in less than a step: only full buffers are returned before the end
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, *size));
  *most_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, size_t, size_t valid) {
  const std::lock_guard lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    switch (record->kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const auto* k = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
        add(k->name, k->start, k->end);
        add_gap(k->streamId, k->start, k->end);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto* m = reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
        static const char* const kNames[] = {"copy", "copy to device", "copy to host"};
        add(kNames[m->copyKind <= 2 ? m->copyKind : 0], m->start, m->end);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto* m = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
        add("set", m->start, m->end);
        break;
      }
      default:
        break;
    }
  }
  write_sums();
  std::free(buffer);
}

}  // namespace

extern "C" int InitializeInjection() {
  if (cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS) return 0;
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    if (cuptiActivityEnable(kind) != CUPTI_SUCCESS) return 0;
  }
  (void)cuptiActivityFlushPeriod(1000);
  std::atexit([] { (void)cuptiActivityFlushAll(1); });
  return 1;
}
