// Exchange: one tag is paused while another is resumed.
#include "arena/arena.h"
#include "bench/cases.h"
#include "bench/contents.h"
#include "bench/plain.h"

namespace neap::bench {

Status run_exchange(Bench& bench) {
  NEAP_TRY_ASSIGN(const auto device, bench.open_device());
  Series limit;
  {
    NEAP_TRY_ASSIGN(const auto copies, PlainCopies::make(*device, bench.scaled(8_GiB, 16_MiB)));
    for (int i = 0; i < bench.cycles(); ++i) {
      NEAP_TRY_ASSIGN(const double sum, copies->both());
      limit.add(sum);
    }
  }
  const std::vector<std::string> a = {"a"}, b = {"b"};
  NEAP_TRY_ASSIGN(const auto arena, arena::Arena::make(*device));
  NEAP_TRY_ASSIGN(const Weights one, create_weights(bench, *arena, "a", arena::Policy::kHost));
  NEAP_TRY(bench.need_host((bench.cuda() ? 2 : 4) * one.total, "backups of two sets of weights"));
  Contents contents(*device, bench.scaled(64_MiB));
  NEAP_TRY(contents.write(one.regions));
  NEAP_TRY(arena->pause(a).status());
  NEAP_TRY_ASSIGN(const Weights other, create_weights(bench, *arena, "b", arena::Policy::kHost));
  NEAP_TRY(contents.write(other.regions));
  Series time, sum;
  for (int i = 0; i < bench.cycles() + 2; ++i) {
    const bool a_comes = i % 2 == 0;
    const Timer timer;
    NEAP_TRY(arena->exchange(a_comes ? b : a, a_comes ? a : b).status());
    const double ms = timer.ms();
    if (i < 2) {  // warm-up and check of the contents
      NEAP_TRY(contents.check(a_comes ? one.regions : other.regions));
      continue;
    }
    time.add(ms);
    sum.add(rate(one.total + other.total, ms));
  }
  NEAP_TRY(arena->resume(a).status());
  NEAP_TRY(arena->resume(b).status());
  NEAP_TRY(contents.check(one.regions));
  NEAP_TRY(contents.check(other.regions));
  const Json detail = {{"bytes", (one.total + other.total).count()}, {"ms", time.median()}};
  bench.add({"exchange", "both directions, in sum", "GB/s", Better::kMore, sum, limit,
             "copies both ways alone", detail});
  return {};
}

}  // namespace neap::bench
