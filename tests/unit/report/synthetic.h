// A small recording of Neap's own kind: tags that come and go, a pool, phases, pages.
#pragma once

#include "trace/recording.h"

namespace neap::report {

class SyntheticRun {
 public:
  SyntheticRun() {
    recording.source = trace::Source::kNeap;
    recording.devices.emplace_back();
    recording.devices[0].has_times = true;
  }
  void add(trace::EventKind kind, std::string_view name, std::uint64_t address,
           std::uint64_t size) {
    trace::Event event;
    event.time_ns = time_ns += 1000;
    event.kind = kind;
    event.name = recording.names.intern(name);
    event.address = address;
    event.size = size;
    recording.devices[0].events.push_back(event);
  }
  /// Two steps of generate and train: 64 MiB of weights stay, the KV cache and the optimizer take
  /// turns on the same 32 MiB, each phase has a pool of 20 MiB with one block of 12 MiB.
  static SyntheticRun two_steps() {
    using trace::EventKind;
    constexpr std::uint64_t kMiB = 1u << 20;
    SyntheticRun run;
    run.add(EventKind::kCreate, "", 1, 64 * kMiB);
    run.add(EventKind::kRegionCreate, "actor.weights", 0x1000000, 64 * kMiB);
    run.add(EventKind::kCreate, "", 2, 32 * kMiB);
    run.add(EventKind::kRegionCreate, "rollout.kv", 0x9000000, 32 * kMiB);
    bool made = false;
    for (int step = 0; step < 2; ++step) {
      for (const bool generate : {true, false}) {
        if (generate && made) {
          run.add(EventKind::kCopyToHost, "actor.optimizer", 0, 32 * kMiB);
          run.add(EventKind::kPause, "actor.optimizer", 0, 32 * kMiB);
          run.add(EventKind::kResume, "rollout.kv", 0, 32 * kMiB);
        }
        if (!generate) {
          run.add(EventKind::kPause, "rollout.kv", 0, 32 * kMiB);
          run.add(made ? EventKind::kResume : EventKind::kRegionCreate, "actor.optimizer",
                  0x20000000, 32 * kMiB);
          made = true;
        }
        const std::string_view phase = generate ? "generate" : "train_actor";
        run.add(EventKind::kPhaseBegin, phase, 0, 0);
        run.add(EventKind::kCreate, "", 3, 20 * kMiB);
        run.add(EventKind::kSegmentAlloc, "", 0x40000000, 20 * kMiB);
        run.add(EventKind::kAlloc, "", 0x40000000, 12 * kMiB - 100);
        run.add(EventKind::kFreeRequested, "", 0x40000000, 12 * kMiB - 100);
        run.add(EventKind::kFreeCompleted, "", 0x40000000, 12 * kMiB - 100);
        run.add(EventKind::kSegmentFree, "", 0x40000000, 20 * kMiB);
        run.add(EventKind::kRelease, "", 3, 20 * kMiB);
        run.add(EventKind::kPhaseEnd, phase, 0, 0);
      }
    }
    return run;
  }

  trace::Recording recording;
  std::uint64_t time_ns = 0;
};

}  // namespace neap::report
