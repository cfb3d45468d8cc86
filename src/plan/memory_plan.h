// The memory plan: tags x phases with bytes, and the schedule of moves that keeps every phase under
// the capacity.
//
// The trainer allocates from it: each TagPlan becomes one arena tag, and the runtime executes `moves` line
// by line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arena/arena.h"
#include "base/json.h"
#include "plan/network.h"
#include "spec/checkpointing.h"
#include "spec/job.h"
#include "spec/job_change.h"
#include "spec/recipe.h"
#include "step/counting_ops.h"
#include "step/table_turns.h"

namespace neap::plan {

/// The cells of the table in docs/architecture.md.
enum class Need { kNeed, kOptional, kDrop };

/// Whether a tag's contents must be kept in the phases that do not need them.
enum class Contents {
  kLive,    ///< must be restored: weights, optimizer states
  kFrozen,  ///< never change after loading: one host copy stays valid
  kScratch  ///< need not be kept: undefined when the next phase that needs them begins (gradients, KV cache)
};

/// A named part of a region: one flat unit of a model.
struct PartPlan {
  std::string name;  ///< "embed", "block.3", "head"; "kv" for the KV cache
  Bytes offset;      ///< from the region's start; a multiple of kPartAlignment
  Bytes bytes;
};
constexpr Bytes kPartAlignment = 512_B;
/// What the arena creates. Small units share a region, so that rounding up to the granularity costs
/// little.
struct RegionPlan {
  std::string name;  ///< of its first and last part: "embed", "block.0..block.7"
  Bytes bytes;       ///< requested; the arena rounds up to the granularity
  std::vector<PartPlan> parts;
};
/// What rests on the host, or on disk, behind a tag of slots and is in one of them while it is used.
struct HostedPlan {
  std::vector<PartPlan> blocks{};     ///< weights, in order
  std::vector<PartPlan> gradients{};  ///< of the same; empty: the model is frozen
  /// The embedding, whose rows are copied when they are read, and the head; and which of them come to the
  /// slots' memory in turns.
  std::vector<PartPlan> tables{}, table_gradients{};
  step::TableUnits turns{};
  std::vector<PartPlan> states{};  ///< of the optimizer: spec::StatePlacement::parts()
  bool states_on_disk = false;     ///< else on the host
  bool blocks_on_disk = false;  ///< `blocks` and `gradients`: they pass windows, one for each slot
  /// Of each slot's, where blocks and tables are read from the model's files; zero: blocks on disk have files of the run.
  Bytes file_window{};
  Bytes window{};               ///< of each of step::kUpdateWindows that states on disk pass
  Bytes slice{};                ///< of sliced weights
  Bytes gradient_slice{};       ///< of their gradients
  std::size_t slice_slots = 0;  ///< that ranges of the slice come to: the last parts of the tag
  Bytes slice_window{};  ///< of each of these, where the slice rests on disk; zero: on the host
  Bytes inputs{};        ///< of each block, for its backward; zero: they stay on the device
  Bytes tied_rows{};     ///< behind gradients, in a mini-batch (step/tied_rows.h)
  /// No slots are in front of it.
  [[nodiscard]] bool empty() const {
    return blocks.empty() && states.empty() && (slice + gradient_slice).is_zero();
  }
  /// Of the pieces that rest on the host, or windows, but for `tied_rows`. The run takes all of them at once.
  [[nodiscard]] std::vector<Bytes> storages() const;
  [[nodiscard]] Bytes bytes() const;     ///< of host memory, as the run takes it
  [[nodiscard]] Bytes on_disk() const;   ///< in files of the run
  [[nodiscard]] Bytes in_files() const;  ///< in the model's own
  // Of a window that blocks on disk pass, of each of step::kBlockSlots:
  [[nodiscard]] Bytes weights_window() const;
  [[nodiscard]] Bytes gradients_window() const;  ///< zero: they are frozen
};
/// Parts of an optimizer, on the device or hosted, are those of its spec::StatePlacement.
struct TagPlan {
  spec::TagId id{};
  std::vector<RegionPlan> regions;
  Bytes bytes;              ///< sum with rounding: what it takes on the device
  std::vector<Need> need;   ///< one a phase
  std::vector<bool> write;  ///< one a phase: the phase changes the contents
  Contents contents = Contents::kLive;
  HostedPlan hosted{};
  bool own_blocks =
      false;  ///< of a generation's blocks: those that this rank trains, which are streamed
  /// Slots that weights come to of which each rank has a slice.
  [[nodiscard]] bool gathers() const {
    return id.kind == spec::TagKind::kBuffers && hosted.blocks.empty();
  }
  /// The arena has nothing of it: a library takes its bytes, for the whole run.
  [[nodiscard]] bool is_outside() const { return id.kind == spec::TagKind::kPeers; }
  [[nodiscard]] std::string name() const { return to_string(id); }  ///< for people and files
};
/// Of all micro-batches and mini-batches of a step.
struct PassSeconds {
  std::vector<double> forward{}, backward{};  ///< of each chunk of a stage
  std::vector<double> weights{};  ///< the second part of a backward in two; empty: it is in one
  double sums = 0;    ///< of gradients over ranks, behind the last backward, and their norms
  double update = 0;  ///< of weights, and their gathers
};
struct PhasePlan {
  spec::PhaseId id = spec::PhaseId::kTrain;
  Bytes transient;            ///< predicted peak of the phase pool, as reserved from the device
  Bytes transient_allocated;  ///< the same as allocated
  /// Of its operations in one step, by the device's rates; of a phase that runs once, for a step's rows.
  double seconds = 0;
  Bytes fetched{}, stored{};  ///< between slots and the host, in one step
  double wait_seconds = 0;    ///< for them; a part of `seconds`
  Bytes sent{};               ///< to other ranks, in one step
  double peer_seconds = 0;    ///< in collectives that nothing hides; a part of `seconds`
  std::int64_t times = 1;     ///< runs in a step; 0: once, before the first
  double share = 1;           ///< of steps that have it
  /// A run that follows another one with nothing moved between begins with the pool's pages: it takes no more than with
  /// new ones.
  bool keeps_pool = false;
  step::OfAxes<double> axis_seconds{};  ///< `communication_seconds` by axis
  PassSeconds passes{};  ///< of a training phase of a pipeline's stage: parts of `seconds`
  double flops = 0;      ///< of matrix products and attention, in one step
  Bytes disk_read{}, disk_written{};  ///< in one step; what it waits for them is in `wait_seconds`
  // Of a pipeline's stage, parts of `seconds` (plan/pipeline_waits.h). A search leaves them out.
  double transfer_seconds = 0;  ///< to and from other stages
  double bubble_seconds = 0;    ///< waiting for them
  [[nodiscard]] std::string name() const { return std::string(to_string(id)); }
};
/// Adds the work of `times` runs of `other`: seconds, copies, collectives and FLOPs; not what its pool takes.
void add_work(PhasePlan& to, const PhasePlan& other, std::int64_t times);
/// Phases [first, last] that run in turn, `times` times in a step: a round for each mini-batch.
struct Loop {
  std::size_t first = 0, last = 0;
  std::int64_t times = 1;
};
struct Move {
  enum class Kind {
    kPause,
    kResume,
    kBackup,  ///< the host copy is made while the tag stays; the pause that follows copies nothing
  } kind;
  spec::TagId tag{};
  arena::Policy policy = arena::Policy::kHost;  ///< of a pause
  Bytes bytes;
  /// False: for a pause, the host copy of an earlier one is still valid; for a resume, nothing is
  /// restored.
  bool copies = true;
  /// Begins with the phase and is waited for at its end; else it is done before the phase begins. Of a backup always, of
  /// a resume where the phase does not need the tag.
  bool behind = false;
  friend bool operator==(const Move&, const Move&) = default;
};
struct PhaseSchedule {
  /// Executed before the phase begins, in this order; last come those that begin with it. Pauses that copy and the
  /// resumes after them are one exchange.
  std::vector<Move> moves;
  std::vector<bool> resident;  ///< one a tag, during the phase
  Bytes persistent;            ///< resident tags
  Bytes peak;                  ///< persistent + transient of the phase
  std::vector<Move> again{};   ///< in place of `moves` in every later round of the phase's loop
  // One a tag:
  std::vector<bool> behind{};  ///< where the tag comes, it comes behind the phase
  std::vector<bool> backup{};  ///< a host copy that is not right is made behind the phase
};

/// Rates between the device and the host, in bytes a second.
struct Link {
  // Pinned memory over PCIe Gen5 x16, measured on an H200, and 64 GiB paused and resumed there.
  double to_host = 55.2e9, to_device = 55.0e9;
  double both = 97.5e9;    ///< sum of both directions at once
  double remap = 4.2e-14;  ///< seconds to unmap a byte and map it again
  /// Of an exchange: both directions at once, then the rest of the larger. `mapped`: bytes that get
  /// pages, whether they are copied or not.
  [[nodiscard]] double seconds(Bytes out, Bytes in, Bytes mapped) const;
};

/// What the blocks of a trained model keep for their backward.
struct ActivationPlan {
  spec::ModelId model = spec::ModelId::kActor;
  spec::CheckpointMode mode = spec::CheckpointMode::kNone;  ///< as configured
  spec::Checkpointing checkpointing;
  /// Tensors that are computed again, and in how many blocks.
  [[nodiscard]] std::vector<std::pair<spec::SavedTensor, std::size_t>> recomputed() const;
};

/// How a trained model is updated.
struct UpdatePlan {
  spec::ModelId model = spec::ModelId::kActor;
  spec::UpdateMode mode = spec::UpdateMode::kJoined;
  spec::Dtype states = spec::Dtype::kFloat32;  ///< of the optimizer's moments
};

/// One of the variants of a job among which a plan is searched (job_variants.h): what memory.allow lets it choose of the
/// job's keys.
struct VariantChoice {
  std::size_t states = 0;  ///< types of optimizer states; 0: as configured
  std::vector<int>
      levels{};  ///< sizes of micro-batches, of each kind; 0: as configured, further ones are smaller
  friend bool operator==(const VariantChoice&, const VariantChoice&) = default;
};

/// The device that a plan is made for.
struct Target {
  bool cuda = false;  ///< else the host device
  Bytes capacity;     ///< zero: unlimited
  Bytes host_memory;  ///< of a GPU's machine, for copies of what leaves the GPU; zero: unlimited
  Bytes granularity = 2_MiB;
  std::int64_t rank = 0;               ///< of the job's, that the plan is made for
  std::int64_t threads = 2;            ///< of libtorch's CPU kernels; each takes scratch memory
  std::int64_t multiprocessors = 132;  ///< of the GPU; H100's and H200's where there is none to ask
  step::KernelRates rates{};           ///< zeros: default_rates()
  Link link;
  std::optional<Network> network{};  ///< nullopt: default_network()
  std::string rates_from;            ///< where the two are from, for people
};

struct MemoryPlan {
  std::string task;
  Bytes capacity;  ///< zero: unlimited
  Bytes granularity;
  Bytes host_budget;     ///< memory.host_budget, or what the target has; zero: unlimited
  bool may_move = true;  ///< tags may wait on the host while no phase needs them
  bool overlap = false;  ///< copies may run while a phase computes
  Link link;
  std::string rates_from;         ///< of the link's and the operations' rates, for people
  spec::ModelModes modes;         ///< of the recipe that the phases are from
  std::vector<PhasePlan> phases;  ///< in the order of one step; behind them those that run once
  std::vector<Loop> loops;        ///< of phases that run more than once
  std::vector<TagPlan> tags;
  std::vector<ActivationPlan> activations;  ///< one a trained model
  std::vector<UpdatePlan> updated;          ///< one a trained model
  /// What the plan chose of the job's keys: apply them to the job before it runs.
  std::vector<spec::JobChange> changes;
  VariantChoice variant;                ///< the one with these changes
  std::vector<PhaseSchedule> schedule;  ///< one a phase; the steady cycle
  Bytes all_resident;  ///< every tag of a step at once, nothing hosted, + the largest transient
  Bytes peak;          ///< largest phase peak of the schedule
  Bytes
      moved_per_step;  ///< bytes over the link, both directions: moves and what slots take and give
  double copy_seconds = 0;  ///< of a step's moves at the link's rates
  double move_seconds = 0;  ///< the part of them that no phase hides
  Bytes host_bytes;         ///< host copies: one of each tag that ever leaves with its contents
  Bytes batch_bytes;        ///< of host memory, a step's batch (batch_memory.h), which is no copy
  Bytes disk_bytes;         ///< what rests on disk

  /// Of `phases`, how many a step has. The others run once, before the first step, with the tags that
  /// they need and no others.
  [[nodiscard]] std::size_t cycle() const;
  /// nullopt: the plan has none.
  [[nodiscard]] std::optional<std::size_t> index_of(spec::TagId tag) const;
  /// Of a generation's blocks the tag of slots that they pass while the model trains; null: others generate.
  [[nodiscard]] const TagPlan* slots_behind(const TagPlan& tag) const {
    if (tag.id.kind != spec::TagKind::kBlocks) return nullptr;
    const auto slots = index_of(spec::TagId{spec::TagKind::kBuffers, tag.id.model});
    return slots && (tag.own_blocks || tags[*slots].gathers()) ? &tags[*slots] : nullptr;
  }
  [[nodiscard]] std::optional<std::size_t> index_of(spec::PhaseId phase) const;
  /// Some phase of a step needs the tag.
  [[nodiscard]] bool in_cycle(const TagPlan& tag) const;
  /// Of a step: operations and moves, one after another, by the device's and the link's rates.
  [[nodiscard]] double seconds() const;
  /// The operations alone, with what they wait for copies to and from slots, and for other ranks.
  [[nodiscard]] double operation_seconds() const;
  /// Of these, for other stages of a pipeline: transfers and the bubble.
  [[nodiscard]] double stage_wait_seconds() const;
  /// Between slots and the host in a step.
  [[nodiscard]] Bytes streamed_per_step() const;
  /// What a step waits for the link: moves that no phase hides, and copies to and from slots.
  [[nodiscard]] double waiting_seconds() const;
  /// Of tags that the arena has nothing of.
  [[nodiscard]] Bytes outside_bytes() const;
  [[nodiscard]] bool fits() const { return capacity.is_zero() || peak <= capacity; }
  /// Null: the model is not trained.
  [[nodiscard]] const spec::Checkpointing* checkpointing(spec::ModelId model) const;
  [[nodiscard]] Json to_json() const;  ///< schema 1; docs/plan-json.md
  [[nodiscard]] std::string to_text() const;
};

/// The fastest plan of the job by the device's rates, over everything that the configuration leaves
/// open (plan_search.h). kDoesNotFit when none fits, with the minimum capacity that would and the
/// settings that lower it. With memory.offload "none" the plan may be over the capacity (see
/// fits()): the run then fails at the device's own limit.
[[nodiscard]] Result<MemoryPlan> make_plan(const spec::Job& job, const Target& target);
/// The minimum capacity of the job, over the same.
[[nodiscard]] Result<Bytes> least_capacity(const spec::Job& job, const Target& target);

/// Fills `schedule` and the sums from tags, phases and capacity: the cheapest moves that fit.
[[nodiscard]] Status solve_residency(MemoryPlan& plan, spec::Residency mode);

}  // namespace neap::plan
