// Backups on disk, compared with plain direct reads and writes of the same file system.
#include <atomic>
#include <thread>

#include "arena/arena.h"
#include "arena/disk_file.h"
#include "base/format.h"
#include "bench/cases.h"
#include "bench/contents.h"
#include "bench/limits.h"

namespace neap::bench {
namespace {

constexpr Bytes kBlock = 1_MiB;
constexpr unsigned kDepth = 32;

/// Transfers every block of the file once, with `kDepth` in flight. Returns GB/s.
template <class Transfer>
Result<double> run_all(Bytes size, Transfer transfer) {
  std::atomic<std::uint64_t> next{0};
  std::vector<Status> failures(kDepth);
  const Timer timer;
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < kDepth; ++i)
      threads.emplace_back([&, i] {
        for (;;) {
          const Bytes at(next.fetch_add(kBlock.count()));
          if (at >= size || !failures[i].ok()) return;
          failures[i] = transfer(i, at);
        }
      });
  }
  const double gbps = rate(size, timer.ms());
  for (const Status& failure : failures) NEAP_TRY(Status(failure));
  return gbps;
}

}  // namespace

Status run_disk(Bench& bench) {
  const Bytes size = round_up(bench.scaled(8_GiB, 64_MiB), kBlock);
  NEAP_TRY(bench.need_disk(2 * size));
  NEAP_TRY_ASSIGN(const auto device, bench.open_device());
  const int cycles = std::clamp(bench.cycles() / 4, 2, 5);

  Series plain_write, plain_read, close_ms;
  {
    NEAP_TRY_ASSIGN(const auto room, HostRoom::make(kBlock * kDepth));
    NEAP_TRY(room->touch(1));
    for (std::uint64_t i = 0; i < room->size.count(); i += 8) {
      const std::uint64_t word = i * 0x9e3779b97f4a7c15ull;  // some disks treat zeros specially
      *reinterpret_cast<std::uint64_t*>(room->at + i) = word;
    }
    for (int i = 0; i < cycles; ++i) {
      NEAP_TRY_ASSIGN(auto file, arena::DiskFile::make(bench.disk_folder(), size));
      NEAP_TRY_ASSIGN(const double out, run_all(size, [&](unsigned thread, Bytes at) {
                        return file->write(at, room->at + kBlock.count() * thread, kBlock);
                      }));
      NEAP_TRY_ASSIGN(const double in, run_all(size, [&](unsigned thread, Bytes at) {
                        return file->read(at, room->at + kBlock.count() * thread, kBlock);
                      }));
      plain_write.add(out);
      plain_read.add(in);
      const Timer closing;
      file = nullptr;
      close_ms.add(closing.ms());
    }
  }

  arena::Options options;
  options.disk_folder = bench.disk_folder();
  NEAP_TRY_ASSIGN(const auto arena, arena::Arena::make(*device, options));
  std::vector<arena::RegionInfo> regions;
  constexpr int kRegions = 16;
  for (int i = 0; i < kRegions; ++i) {
    NEAP_TRY_ASSIGN(arena::RegionInfo region,
                    arena->create("tag", size / kRegions, arena::Policy::kDisk));
    regions.push_back(std::move(region));
  }
  Contents contents(*device, bench.scaled(64_MiB));
  NEAP_TRY(contents.write(regions));
  Series write, read;
  for (int i = 0; i < cycles; ++i) {
    // The last cycle's file is closed in the background. Wait for a typical phase, so that the
    // close does not slow the next pause.
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(1.5 * close_ms.at(1)));
    const Timer out;
    NEAP_TRY(arena->pause(kTag).status());
    write.add(rate(size, out.ms()));
    const Timer in;
    NEAP_TRY(arena->resume(kTag).status());
    read.add(rate(size, in.ms()));
    if (i == 0) NEAP_TRY(contents.check(regions));
  }
  NEAP_TRY(contents.check(regions));
  const Json detail = {
      {"bytes", size.count()}, {"folder", bench.disk_folder()}, {"close_ms", close_ms.median()}};
  const std::string from = format("plain file, {} of {} under way", kDepth, kBlock);
  bench.add({"disk", "pause", "GB/s", Better::kMore, write, plain_write, from, detail});
  bench.add({"disk", "resume", "GB/s", Better::kMore, read, plain_read, from, detail});
  return {};
}

}  // namespace neap::bench
