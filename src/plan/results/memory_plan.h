// The memory plan: bytes of each tag in each phase, and a schedule of moves that keeps every phase
// under the capacity.
//
// The trainer allocates from it: each TagPlan becomes one arena tag, and the runtime executes
// `moves` in order.
//
// Threads   values; may be shared when const.
// Failure   kDoesNotFit with the minimum capacity; kInvalidArgument for invalid settings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arena/arena.h"
#include "base/json.h"
#include "plan/results/network.h"
#include "spec/job/job.h"
#include "spec/model/checkpointing.h"
#include "spec/recipe/job_change.h"
#include "spec/recipe/recipe.h"
#include "step/counting/counting_ops.h"
#include "step/units/table_turns.h"
#include "weights/open_folders.h"

namespace neap::plan {

/// The cells of the table in docs/architecture.md.
enum class Need { kNeed, kOptional, kDrop };

/// Whether a tag's contents must be kept in phases that do not need them.
enum class Contents {
  kLive,    ///< must be restored: weights, optimizer states
  kFrozen,  ///< never change after loading: one host copy stays valid
  /// Need not be kept: undefined when the next phase that needs them begins (gradients, KV cache).
  kScratch
};

/// A named part of a region: one flat unit of a model.
struct PartPlan {
  std::string name;  ///< "embed", "block.3", "head"; "kv" for the KV cache
  Bytes offset;      ///< from the region's start; a multiple of kPartAlignment
  Bytes bytes;
};
constexpr Bytes kPartAlignment = 512_B;
/// A region of the arena. Small units share a region, so that rounding up to the page size costs
/// little.
struct RegionPlan {
  std::string name;  ///< names of its first and last part: "embed", "block.0..block.7"
  Bytes bytes;       ///< requested size; the arena rounds it up
  std::vector<PartPlan> parts;
};
/// Data in host memory or on disk, which a tag of prefetch buffers holds while it is used: one buffer
/// per piece.
struct HostedPlan {
  /// Home of blocks and their gradients, states or a shard. Tables and inputs are always in host
  /// memory. Data on disk pass through pinned staging buffers.
  spec::Home home = spec::Home::kHost;
  std::vector<PartPlan> blocks{};     ///< weights, in order
  std::vector<PartPlan> gradients{};  ///< gradients of the blocks; empty: the model is frozen
  /// Embedding and head, and which of them use the buffers. Only the needed rows of the embedding
  /// are copied.
  std::vector<PartPlan> tables{}, table_gradients{};
  step::TableUnits turns{};
  std::vector<PartPlan> states{};  ///< of the optimizer: spec::StatePlacement::parts()
  /// Staging buffer per prefetch buffer, if blocks and tables are read from the model's own files.
  /// Zero: blocks on disk are in files of the run.
  Bytes file_window{};
  Bytes window{};          ///< staging buffer for states on disk; there are step::kUpdateWindows
  Bytes slice{};           ///< shard of ZeRO-3 weights
  Bytes gradient_slice{};  ///< shard of ZeRO-3 gradients
  std::size_t slice_slots = 0;  ///< device buffers for ranges of the shard
  Bytes slice_window{};         ///< staging buffer of each of these, if the shard is on disk
  /// Rollout weights that pass through a file of the run, each in whole pages; and the size of its
  /// two staging buffers.
  std::vector<PartPlan> stored{};
  Bytes stored_buffer{};
  /// Inputs of each block, for as many passes as wait for their backward at once (`input_passes`).
  /// Empty: they stay on the device.
  std::vector<PartPlan> inputs{};
  std::int64_t input_passes = 1;
  /// Inputs of a block for one pass.
  [[nodiscard]] Bytes pass_inputs() const;
  Bytes tied_rows{};  ///< host copies of a tied embedding's rows (step/model/tied_rows.h)
  [[nodiscard]] bool is_on_disk() const { return spec::is_staged(home); }
  /// True if there are no prefetch buffers.
  [[nodiscard]] bool empty() const {
    return blocks.empty() && inputs.empty() && states.empty() && (slice + gradient_slice).is_zero();
  }
  /// Sizes of the pieces in host memory, or of staging buffers, without `tied_rows`. A run
  /// allocates all of them at once.
  [[nodiscard]] std::vector<Bytes> storages() const;
  [[nodiscard]] Bytes bytes() const;     ///< host memory, as the run allocates it
  [[nodiscard]] Bytes on_disk() const;   ///< in files of the run
  [[nodiscard]] Bytes in_files() const;  ///< in the model's own files
  // Staging buffers for blocks on disk; there are step::kBlockSlots of each.
  [[nodiscard]] Bytes weights_window() const;
  [[nodiscard]] Bytes gradients_window() const;  ///< zero: the blocks are frozen
};
/// A tag. Parts of an optimizer, on the device or offloaded, are those of its spec::StatePlacement.
struct TagPlan {
  spec::TagId id{};
  std::vector<RegionPlan> regions;
  Bytes bytes;              ///< size on the device, including rounding
  std::vector<Need> need;   ///< per phase
  std::vector<bool> write;  ///< per phase: whether the phase changes the contents
  Contents contents = Contents::kLive;
  HostedPlan hosted{};
  /// For rollout weights: this rank trains these blocks and offloads them.
  bool own_blocks = false;
  /// For prefetch buffers: weights are gathered into them from ZeRO shards.
  bool gathers = false;
  /// For weights: why memory.allow's "offload_weights" leaves them on the device while a phase needs
  /// them (legal_homes.h). Empty: it need not.
  std::string_view kept{};
  /// Memory of a library, which the arena does not manage. It is taken for the whole run.
  [[nodiscard]] bool is_outside() const {
    return id.kind == spec::TagKind::kPeers || id.kind == spec::TagKind::kGraphNodes;
  }
  [[nodiscard]] std::string name() const { return to_string(id); }  ///< for messages and files
};
/// Sums over all micro-batches and mini-batches of a step.
struct PassSeconds {
  std::vector<double> forward{}, backward{};  ///< per chunk of a stage
  std::vector<double> weights{};  ///< second part of the backward; empty: the backward has one part
  double sums = 0;    ///< reduction of gradients after the last backward, and their norms
  double update = 0;  ///< update of weights, and their gathers
};
struct PhasePlan {
  spec::PhaseId id = spec::PhaseId::kTrain;
  Bytes transient;            ///< predicted peak of the phase's pool, as reserved from the device
  Bytes transient_allocated;  ///< the same, as allocated
  /// Estimated time of its operations in one step. For a phase that runs once: for a step's rows.
  double seconds = 0;
  Bytes fetched{}, stored{};  ///< bytes loaded to prefetch buffers, and copied back, per step
  double wait_seconds = 0;    ///< exposed time of these copies; included in `seconds`
  Bytes sent{};               ///< to other ranks, per step
  double peer_seconds = 0;    ///< exposed time of collectives; included in `seconds`
  std::int64_t times = 1;     ///< runs per step; 0: once, before the first step
  double share = 1;           ///< fraction of steps that include it
  /// Phases that begin with the pages of this phase's pool if they follow it and no tag moves in
  /// between (kept_pools.h). Others begin with an empty pool.
  std::vector<spec::PhaseId> pool_for{};
  step::OfAxes<double> axis_seconds{};  ///< exposed communication per axis
  PassSeconds passes{};   ///< for training phases of a pipeline stage: parts of `seconds`
  double flops = 0;       ///< matrix products and attention, per step
  Bytes graph_scratch{};  ///< tensors of the decoding graphs
  Bytes graph_nodes{};    ///< the driver's memory for these graphs
  Bytes disk_read{}, disk_written{};  ///< per step; waits for them are in `wait_seconds`
  // For pipeline stages; included in `seconds` (plan/counting/pipeline_waits.h). A search leaves them out.
  double transfer_seconds = 0;  ///< transfers to and from other stages
  double bubble_seconds = 0;    ///< waits for other stages
  [[nodiscard]] std::string name() const { return std::string(to_string(id)); }
};
/// Adds the work of `times` runs of `other`: seconds, copies, collectives and FLOPs, but not its
/// pool.
void add_work(PhasePlan& to, const PhasePlan& other, std::int64_t times);
/// Phases [first, last] that run in turn, `times` times per step: one round per mini-batch.
struct Loop {
  std::size_t first = 0, last = 0;
  std::int64_t times = 1;
};
struct Move {
  enum class Kind {
    kPause,
    kResume,
    kBackup,  ///< copies to the host while the tag stays, so that the later pause copies nothing
  } kind;
  spec::TagId tag{};
  arena::Policy policy = arena::Policy::kHost;  ///< of a pause
  Bytes bytes;
  /// False: for a pause, an earlier host copy is still valid; for a resume, nothing is restored.
  bool copies = true;
  /// Whether it overlaps with the phase: it starts with the phase and is waited for at its end.
  /// Otherwise it completes before the phase begins. Backups always overlap, and resumes may if the
  /// phase does not need the tag.
  bool behind = false;
  friend bool operator==(const Move&, const Move&) = default;
};
struct PhaseSchedule {
  /// Executed before the phase begins, in this order; the last ones are those that overlap with the
  /// phase. Pauses that copy and the resumes after them form one exchange.
  std::vector<Move> moves;
  std::vector<bool> resident;  ///< per tag, during the phase
  Bytes persistent;            ///< resident tags
  Bytes peak;                  ///< persistent + temporaries of the phase
  std::vector<Move> again{};   ///< replaces `moves` in later rounds of the phase's loop
  // Per tag:
  std::vector<bool> behind{};  ///< a resume overlaps with the phase
  std::vector<bool> backup{};  ///< a stale host copy is renewed during the phase
};

/// Throughput between device and host, in bytes per second.
struct Link {
  // Pinned memory over PCIe Gen5 x16, measured on an H200 by pausing and resuming 64 GiB.
  double to_host = 55.2e9, to_device = 55.0e9;
  double both = 97.5e9;    ///< both directions together
  double remap = 4.2e-14;  ///< seconds per byte to unmap and map again
  /// Time of an exchange: both directions at once, then the rest of the larger one. `mapped` are
  /// bytes that get pages, copied or not.
  [[nodiscard]] double seconds(Bytes out, Bytes in, Bytes mapped) const;
};

/// Which tensors the blocks of a trained model keep for their backward.
struct ActivationPlan {
  spec::ModelId model = spec::ModelId::kActor;
  spec::CheckpointMode mode = spec::CheckpointMode::kNone;  ///< as configured
  spec::Checkpointing checkpointing;
  std::vector<spec::SavedTensor> tensors;  ///< those that the model's blocks have
  /// Recomputed ones of these, and the number of blocks that recompute them.
  [[nodiscard]] std::vector<std::pair<spec::SavedTensor, std::size_t>> recomputed() const;
};

/// Values of the job's keys that a plan search may choose because of memory.allow (job_variants.h).
struct VariantChoice {
  std::size_t states = 0;  ///< type of optimizer states; 0: as configured
  /// Micro-batch size of each kind; 0: as configured, larger levels are smaller.
  std::vector<int> levels{};
  friend bool operator==(const VariantChoice&, const VariantChoice&) = default;
};

/// The device that a plan is made for.
struct Target {
  bool cuda = false;  ///< otherwise the CPU
  Bytes capacity;     ///< zero: unlimited
  Bytes host_memory;  ///< of the GPU's machine, for offloaded data; zero: unlimited
  Bytes granularity = 2_MiB;
  std::int64_t rank = 0;               ///< the job's rank that the plan is for
  std::int64_t threads = 2;            ///< of libtorch's CPU kernels; each takes scratch memory
  std::int64_t multiprocessors = 132;  ///< of the GPU; the default is that of H100 and H200
  bool own_kernels = false;    ///< the GPU runs Neap's kernels (step/operations/own_kernels.h)
  bool warp_groups = false;    ///< its warp groups multiply (step::OwnKernels)
  std::string no_own_kernels;  ///< why own_kernels is false; empty: it is true, or not asked for
  std::string no_fp8;          ///< why it has no products of fp8; empty: it has
  step::KernelRates rates{};   ///< zeros: default_rates()
  Link link;
  std::optional<Network> network{};  ///< nullopt: default_network()
  std::string rates_from;            ///< origin of rates and network, for messages
  weights::OpenFolders folders{};    ///< of the job's models
};

struct MemoryPlan {
  std::string task;
  Bytes capacity;  ///< zero: unlimited
  Bytes granularity;
  Bytes host_budget;     ///< memory.host_budget, or the target's; zero: unlimited
  bool may_move = true;  ///< tags may be offloaded while no phase needs them
  bool overlap = false;  ///< copies may overlap with phases
  Link link;
  std::string rates_from;         ///< origin of the rates of link and operations, for messages
  bool own_kernels = false;       ///< Neap's kernels run
  bool fp8 = false;               ///< layers multiply in fp8 in training and scoring
  std::string no_own_kernels;     ///< why own_kernels is false, if the job allows them
  spec::StepModes modes;          ///< of the recipe that the phases come from
  std::string no_graphs;          ///< why decoding is not in CUDA graphs; empty: it is
  std::vector<PhasePlan> phases;  ///< in the order of a step; then those that run once
  std::vector<Loop> loops;        ///< phases that run several times per step
  std::vector<TagPlan> tags;
  std::vector<ActivationPlan> activations;  ///< per trained model
  /// The plan's choices of the job's keys. Apply them to the job before it runs.
  std::vector<spec::JobChange> changes;
  VariantChoice variant;                ///< the variant with these changes
  std::vector<PhaseSchedule> schedule;  ///< per phase; the steady cycle
  /// Every tag of a step at once without offloading, plus the largest temporaries.
  Bytes all_resident;
  Bytes peak;  ///< largest phase peak of the schedule
  /// Bytes over the link, both directions: moves, and loads of prefetch buffers.
  Bytes moved_per_step;
  double copy_seconds = 0;  ///< of a step's moves, at the link's throughput
  double move_seconds = 0;  ///< exposed part of them
  Bytes host_bytes;  ///< offloaded data: one copy of each tag that is ever paused with its contents
  /// Host memory of a step's batch (batch_memory.h), which is not offloaded data.
  Bytes batch_bytes;
  Bytes disk_bytes;  ///< on disk
  /// Host memory for a copy of a checkpoint that is written while training continues, at most
  /// (checkpoint_copy.h). Zero: no copies.
  Bytes checkpoint_copy;

  /// How many of `phases` are part of a step: the first ones. The others run once, before the first
  /// step, with only the tags that they need.
  [[nodiscard]] std::size_t cycle() const;
  /// nullopt if the plan has no such tag.
  [[nodiscard]] std::optional<std::size_t> index_of(spec::TagId tag) const;
  /// The prefetch buffers that load these rollout weights, because the same blocks are offloaded or
  /// sharded in training. Null: there are none.
  [[nodiscard]] const TagPlan* slots_behind(const TagPlan& tag) const {
    if (tag.id.kind != spec::TagKind::kBlocks) return nullptr;
    const auto slots = index_of(spec::TagId{spec::TagKind::kBuffers, tag.id.model});
    return slots && (tag.own_blocks || tags[*slots].gathers) ? &tags[*slots] : nullptr;
  }
  [[nodiscard]] std::optional<std::size_t> index_of(spec::PhaseId phase) const;
  /// Whether some phase of a step needs the tag.
  [[nodiscard]] bool in_cycle(const TagPlan& tag) const;
  /// Estimated time of a step: operations, then exposed moves.
  [[nodiscard]] double seconds() const;
  /// Operations alone, including exposed copies of prefetch buffers and exposed communication.
  [[nodiscard]] double operation_seconds() const;
  /// The part of it that waits for other pipeline stages: transfers and the bubble.
  [[nodiscard]] double stage_wait_seconds() const;
  /// Bytes between prefetch buffers and the host per step.
  [[nodiscard]] Bytes streamed_per_step() const;
  /// Exposed copies per step: moves, and copies of prefetch buffers.
  [[nodiscard]] double waiting_seconds() const;
  /// Bytes of tags that the arena does not manage.
  [[nodiscard]] Bytes outside_bytes() const;
  /// Whether checkpoints are copied: the copy fits in the host memory that the rest leaves.
  [[nodiscard]] bool copies_checkpoints() const {
    return !checkpoint_copy.is_zero() &&
           (host_budget.is_zero() || host_bytes + checkpoint_copy <= host_budget);
  }
  [[nodiscard]] bool fits() const { return capacity.is_zero() || peak <= capacity; }
  /// Null if the model is not trained.
  [[nodiscard]] const spec::Checkpointing* checkpointing(spec::ModelId model) const;
  [[nodiscard]] Json to_json() const;  ///< schema 1; docs/json.md
  [[nodiscard]] std::string to_text() const;
};

/// The fastest plan of the job by estimated time, over all settings that the configuration leaves
/// open (plan_search.h). Fails with kDoesNotFit if none fits, with the minimum capacity and the
/// settings that would lower it. With memory.offload "none", the plan may exceed the capacity (see
/// fits()), and the run then fails at the device's own limit.
[[nodiscard]] Result<MemoryPlan> make_plan(const spec::Job& job, const Target& target);
/// The minimum capacity of the job, over the same settings.
[[nodiscard]] Result<Bytes> least_capacity(const spec::Job& job, const Target& target);

/// Fills `schedule` and the sums from tags, phases and capacity, with the cheapest moves that fit.
[[nodiscard]] Status solve_residency(MemoryPlan& plan, spec::Residency mode);

}  // namespace neap::plan
