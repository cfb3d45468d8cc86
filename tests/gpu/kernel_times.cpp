// What kernels and copies of any CUDA program take, summed by name: a library that the driver loads into it.
//
//   g++ -O2 -std=c++20 -shared -fPIC -I CUDA/include -o libkernel_times.so tests/gpu/kernel_times.cpp -L CUDA/lib -l:libcupti.so.13
//   CUDA_INJECTION64_PATH=$PWD/libkernel_times.so NEAP_KERNEL_TIMES=times.jsonl neap train ...
//
// Each second with work, and at the end, a line is appended: {"from", "to": nanoseconds of the card's clock, "busy": of these
// with something running, "kernels": {name: [times, nanoseconds]}} of that interval. tests/gpu/kernel_times.py sums them up.
// A kernel costs the program about 1 us more.
#include <cupti.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Sum {
  std::uint64_t times = 0, nanoseconds = 0;
};
struct Interval {
  std::map<std::string, Sum> sums;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
};

std::mutex mutex;
Interval open_interval;  // NOLINT: CUPTI calls plain functions

void write_interval() {
  Interval done;
  std::swap(done, open_interval);
  if (done.spans.empty()) return;
  std::sort(done.spans.begin(), done.spans.end());
  std::uint64_t busy = 0, until = 0;
  for (const auto& [from, to] : done.spans) {
    if (to <= until) continue;
    busy += to - std::max(from, until);
    until = to;
  }
  const char* path = std::getenv("NEAP_KERNEL_TIMES");
  std::FILE* const out = std::fopen(path != nullptr ? path : "kernel_times.jsonl", "a");
  if (out == nullptr) return;
  std::fprintf(out, R"({"from": %llu, "to": %llu, "busy": %llu, "kernels": {)",
               static_cast<unsigned long long>(done.spans.front().first),
               static_cast<unsigned long long>(until), static_cast<unsigned long long>(busy));
  const char* comma = "";
  for (const auto& [name, sum] : done.sums) {
    std::fprintf(out, R"(%s"%s": [%llu, %llu])", comma, name.c_str(),
                 static_cast<unsigned long long>(sum.times),
                 static_cast<unsigned long long>(sum.nanoseconds));
    comma = ", ";
  }
  std::fprintf(out, "}}\n");
  std::fclose(out);
}

void add(const char* name, std::uint64_t from, std::uint64_t to) {
  Sum& sum = open_interval.sums[name];
  ++sum.times;
  sum.nanoseconds += to - from;
  open_interval.spans.emplace_back(from, to);
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, size_t* size, size_t* most_records) {
  *size = 8 << 20;
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
  write_interval();
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
