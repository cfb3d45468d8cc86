// How fast traces are read, written and recorded. NEAP_SNAPSHOT names a snapshot to read; without it
// the reader's benchmarks are left out and say so.
#include <benchmark/benchmark.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>

#include "base/file.h"
#include "base/input.h"
#include "trace/reader.h"
#include "trace/recorder.h"
#include "trace/writer.h"

namespace neap::trace {
namespace {

const char* snapshot() {
  return std::getenv("NEAP_SNAPSHOT");
}
std::filesystem::path temp(const char* name) {
  return std::filesystem::temp_directory_path() /
         (std::string("neap_bench_") + name + std::to_string(::getpid()));
}
/// Unpacked size: what "MB/s" of a reader means here, however the file is packed.
std::uint64_t unpacked_size(const std::filesystem::path& path) {
  Input input = value_or_throw(Input::open(path));
  while (input.ensure(1)) input.advance(input.available());
  return input.position();
}

void read_snapshot(benchmark::State& state) {
  if (snapshot() == nullptr) {
    state.SkipWithError("NEAP_SNAPSHOT is not set");
    return;
  }
  const std::uint64_t size = unpacked_size(snapshot());
  std::uint64_t events = 0;
  for (auto _ : state) events = value_or_throw(read(snapshot())).event_count();
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  state.SetBytesProcessed(
      static_cast<std::int64_t>(static_cast<std::uint64_t>(state.iterations()) * size));
  state.counters["events"] = static_cast<double>(events);
  state.counters["unpacked_MB"] = static_cast<double>(size) / 1e6;
  state.counters["peak_MB"] = static_cast<double>(use.ru_maxrss) * 1024 / 1e6;
}
BENCHMARK(read_snapshot)->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond);

void write_neap(benchmark::State& state) {
  if (snapshot() == nullptr) {
    state.SkipWithError("NEAP_SNAPSHOT is not set");
    return;
  }
  const Recording r = value_or_throw(read(snapshot()));
  const auto path = temp("write");
  for (auto _ : state) throw_if_error(write(path, r));
  state.counters["file_MB"] = static_cast<double>(std::filesystem::file_size(path)) / 1e6;
  state.counters["events/s"] = benchmark::Counter(static_cast<double>(r.event_count()),
                                                  benchmark::Counter::kIsIterationInvariantRate);
  std::filesystem::remove(path);
}
BENCHMARK(write_neap)->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond);

void read_neap(benchmark::State& state) {
  if (snapshot() == nullptr) {
    state.SkipWithError("NEAP_SNAPSHOT is not set");
    return;
  }
  const auto path = temp("read");
  std::uint64_t events = 0;
  throw_if_error(write(path, value_or_throw(read(snapshot()))));
  for (auto _ : state) events = value_or_throw(read(path)).event_count();
  state.counters["events/s"] = benchmark::Counter(static_cast<double>(events),
                                                  benchmark::Counter::kIsIterationInvariantRate);
  std::filesystem::remove(path);
}
BENCHMARK(read_neap)->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond);

/// One caller's cost: its own thread's time, in bursts of 32768 events between which the writer
/// catches up with the clock stopped.
void record(benchmark::State& state) {
  const auto path = temp("record");
  auto recorder = value_or_throw(Recorder::open(path));
  const std::uint32_t name = recorder->intern("rollout.kv");
  std::uint64_t i = 0;
  for (auto _ : state) {
    recorder->record({.address = 0x7F0000000000ULL + (i % 4096) * 512,
                      .size = i % 100000,
                      .name = name,
                      .kind = EventKind::kMap});
    if (++i % 32768 == 0) {
      state.PauseTiming();
      throw_if_error(recorder->flush());
      state.ResumeTiming();
    }
  }
  throw_if_error(recorder->close());
  state.counters["dropped"] = static_cast<double>(recorder->dropped());
  state.counters["bytes/event"] =
      static_cast<double>(std::filesystem::file_size(path)) / static_cast<double>(i);
  std::filesystem::remove(path);
}
BENCHMARK(record);

}  // namespace
}  // namespace neap::trace
