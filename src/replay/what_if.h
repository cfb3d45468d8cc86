// Replays the recorded program with other settings: peaks, driver calls, time, and where it would
// not fit.
//
// Model     Blocks live before the first event are allocated first, by address, under all settings.
//           The recorded settings have no special start.
//
// Threads   run_scenario has no shared state; run_scenarios uses several threads.
//
// Failure   a scenario that runs out of memory is a result (Outcome::oom), not an error.
//
// Cost      8 to 20 million events per second and core.
#pragma once

#include <functional>
#include <optional>

#include "replay/address_order.h"

namespace neap::replay {

/// Phases after which torch.cuda.empty_cache() is called.
struct EmptyPolicy {
  enum class Kind { kNone, kInference, kTraining, kAll, kNamed, kRecorded };
  Kind kind = Kind::kNone;
  std::vector<std::string> names;  ///< for kNamed, with or without the prefix "phase:"

  /// Parses "none", "inference", "training", "all", "recorded" (the program's own calls), or phase
  /// names separated by commas.
  [[nodiscard]] static EmptyPolicy parse(std::string_view text);
  [[nodiscard]] std::string to_string() const;
  /// Whether the cache is emptied where the program did not do it.
  [[nodiscard]] bool is_added() const { return kind != Kind::kNone && kind != Kind::kRecorded; }
  /// Whether to empty the cache after `phase`. A phase is training if its name without "phase:"
  /// begins with "train".
  [[nodiscard]] bool after(std::string_view phase) const;
};

[[nodiscard]] std::string_view without_prefix(std::string_view phase);
[[nodiscard]] bool is_training(std::string_view phase);

struct Scenario {
  std::string conf;  ///< as given
  EmptyPolicy empty;
  double fraction = 0;  ///< set_per_process_memory_fraction; 0 = unset
  cache::Settings settings;
  cache::PolicyVersion version;
  /// Imitates Neap: memory freed in the phase that allocated it is in a pool that is released at
  /// the end of the phase. Other memory is in regions.
  bool phase_pools = false;

  /// Settings and fraction as text for people.
  [[nodiscard]] std::string name() const;
  [[nodiscard]] static Result<Scenario> make(std::string_view conf, std::string_view empty,
                                             double fraction, const cache::PolicyVersion& version);
};

struct OutOfMemory {
  std::uint32_t event = 0;
  std::string phase;
  Bytes need, free;
};

template <class T>
struct Interval {
  T least{}, most{};
  [[nodiscard]] bool is_one_number() const { return least == most; }
};

/// "12.34 GiB", or "12.3 to 12.6 GiB".
[[nodiscard]] std::string to_string(const Interval<Bytes>& range);

/// Results for one address order.
struct OrderFigures {
  AddressOrder order;
  Bytes peak_reserved;
  std::uint64_t driver_allocs = 0;
  bool out_of_memory = false;
};

/// Results of a scenario. The figures are those of the best estimate, the first address order.
struct Outcome {
  Bytes peak_reserved, peak_allocated, peak_requested;
  Bytes end_reserved, end_allocated;
  std::uint64_t driver_allocs = 0, driver_frees = 0, retries = 0;
  Bytes fragmentation_at_peak, fragmentation_max;
  /// Peak reserved − peak of reserved without fragmentation, as the paper defines it.
  Bytes fragmentation_overhead;
  std::optional<OutOfMemory> oom;  ///< set if the replay ended there
  double driver_ms = 0;            ///< estimated time of driver calls
  std::uint64_t empty_cache_calls = 0;
  std::uint64_t events = 0;
  /// One entry per address order, the best estimate first. A single entry if no segment was
  /// released, because the order is then known.
  std::vector<OrderFigures> orders;
  bool released_segments = false;

  /// Range over the orders, extended by a quarter of its width on both sides: a dozen orders rarely
  /// include the extremes. Orders that ran out of memory count only if the best estimate also did.
  [[nodiscard]] Interval<Bytes> peak_reserved_range() const;
  [[nodiscard]] Interval<std::uint64_t> driver_allocs_range() const;
  [[nodiscard]] std::size_t orders_out_of_memory() const;
};

/// The recorded settings, with the program's own empty_cache calls.
[[nodiscard]] Scenario recorded_scenario(const Workload& workload);

/// Capacity that means no limit in the simulation.
inline constexpr Bytes kNoLimit{1ull << 50};

/// Replays one scenario under one address order.
[[nodiscard]] Result<Outcome> run_scenario(const Workload& workload, const Scenario& scenario,
                                           Bytes capacity, const AddressOrder& order = {});

/// Replays each scenario under `orders` address orders. Results are in the order of `scenarios`.
/// `done` is called after each scenario, from any thread but one at a time.
[[nodiscard]] std::vector<Result<Outcome>> run_scenarios(
    const Workload& workload, const std::vector<Scenario>& scenarios, Bytes capacity,
    unsigned threads, const std::function<void(std::size_t finished)>& done = {},
    std::size_t orders = kDefaultAddressOrders);

}  // namespace neap::replay
