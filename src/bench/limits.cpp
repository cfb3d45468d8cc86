// The best rates of this machine's memory and link.
#include <atomic>
#include <cstring>
#include <thread>

#include "arena/host_memory.h"
#include "base/format.h"
#include "bench/cases.h"
#include "bench/limits.h"
#include "bench/plain.h"

namespace neap::bench {
namespace {

constexpr Bytes kSlice = 4_MiB;

/// Runs `work` for every chunk of [0, size) on many threads and returns the first failure.
template <class Work>
Status by_threads(unsigned threads, Bytes size, Work work) {
  std::atomic<std::uint64_t> next{0};
  std::vector<Status> failures(threads);
  {
    std::vector<std::jthread> all;
    for (unsigned i = 0; i < threads; ++i)
      all.emplace_back([&, i] {
        for (;;) {
          const Bytes at(next.fetch_add(kSlice.count()));
          if (at >= size) return;
          if (Status status = work(at, std::min(kSlice, size - at)); !status.ok())
            failures[i] = std::move(status);
        }
      });
  }
  for (const Status& failure : failures) NEAP_TRY(Status(failure));
  return {};
}

}  // namespace

HostRoom::~HostRoom() {
  if (at != nullptr) arena::unmap_host(at, size, 1);
}

Result<std::unique_ptr<HostRoom>> HostRoom::make(Bytes size) {
  auto room = std::make_unique<HostRoom>();
  NEAP_TRY_ASSIGN(room->at, arena::map_host(size));
  room->size = size;
  return room;
}

Status HostRoom::touch(unsigned threads) {
  return by_threads(threads, size, [this](Bytes offset, Bytes some) {
    return arena::populate_host(at + offset.count(), some);
  });
}

unsigned touching_threads() {
  return std::clamp(std::thread::hardware_concurrency() / 2, 1u, 8u);
}

Status run_host_memory(Bench& bench) {
  const Bytes size = bench.scaled(8_GiB, 16_MiB);
  NEAP_TRY(bench.need_host(2 * size, "measuring host memory"));
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  Row touch{"host_memory", "first touch", "GB/s", Better::kMore, {}, {}, "", {}};
  touch.detail = {{"threads", touching_threads()}, {"bytes", size.count()}};
  std::unique_ptr<HostRoom> from, to;
  for (int i = 0; i <= bench.cycles() / 2; ++i) {
    NEAP_TRY_ASSIGN(from, HostRoom::make(size));
    const Timer timer;
    NEAP_TRY(from->touch(touching_threads()));
    touch.measured.add(rate(size, timer.ms()));
  }
  bench.add(touch);

  NEAP_TRY_ASSIGN(to, HostRoom::make(size));
  std::memset(from->at, 0x5a, size.count());
  NEAP_TRY(to->touch(touching_threads()));
  for (const unsigned threads : cores > 1 ? std::vector{1u, cores} : std::vector{1u}) {
    Row copy{"host_memory",
             format("copy by {} thread{}", threads, threads == 1 ? "" : "s"),
             "GB/s",
             Better::kMore,
             {},
             {},
             "",
             {}};
    copy.detail = {{"threads", threads}, {"bytes", size.count()}};
    for (int i = 0; i < bench.cycles(); ++i) {
      const Timer timer;
      NEAP_TRY(by_threads(threads, size, [&](Bytes at, Bytes some) {
        std::memcpy(to->at + at.count(), from->at + at.count(), some.count());
        return Status();
      }));
      copy.measured.add(rate(size, timer.ms()));
    }
    bench.add(copy);
  }
  if (std::memcmp(from->at, to->at, size.count()) != 0)
    return {ErrorCode::kInternal, "a copy in host memory differs from its source"};
  from = nullptr;
  to = nullptr;

  NEAP_TRY_ASSIGN(const auto device, bench.open_device());
  NEAP_TRY_ASSIGN(const auto copies, PlainCopies::make(*device, bench.scaled(4_GiB, 16_MiB)));
  Row down{"link", "copy to the host", "GB/s", Better::kMore, {}, {}, "", {}};
  Row up{"link", "copy to the device", "GB/s", Better::kMore, {}, {}, "", {}};
  Row both{"link", "both ways at once, in sum", "GB/s", Better::kMore, {}, {}, "", {}};
  for (int i = 0; i < bench.cycles(); ++i) {
    NEAP_TRY_ASSIGN(const double out, copies->to_host());
    NEAP_TRY_ASSIGN(const double in, copies->to_device());
    NEAP_TRY_ASSIGN(const double sum, copies->both());
    down.measured.add(out);
    up.measured.add(in);
    both.measured.add(sum);
  }
  for (const Row& row : {down, up, both}) bench.add(row);
  return {};
}

}  // namespace neap::bench
