#include <algorithm>
#include <vector>

#include "base/format.h"
#include "plan/results/memory_plan.h"
#include "plan/results/plan_table.h"
#include "plan/results/plan_words.h"
#include "spec/job/placement.h"

namespace neap::plan {
namespace {

std::string move_text(const Move& m) {
  const std::string tag = to_string(m.tag), size = to_string(m.bytes);
  if (m.kind == Move::Kind::kBackup)
    return format("{} copied to the host while it stays ({})", tag, size);
  if (m.kind == Move::Kind::kResume)
    return m.copies ? format("{} from the host ({})", tag, size)
                    : format("{} mapped ({})", tag, size);
  if (m.policy == arena::Policy::kDiscard) return format("{} dropped ({})", tag, size);
  return m.copies ? format("{} to the host ({})", tag, size)
                  : format("{} released, host copy up to date ({})", tag, size);
}

}  // namespace

std::string cell_word(const MemoryPlan& plan, std::size_t tag, std::size_t phase) {
  const TagPlan& t = plan.tags[tag];
  if (t.need[phase] == Need::kNeed) return "need";
  if (phase >= plan.cycle()) return "absent";
  if (plan.schedule[phase].resident[tag]) return "stay";
  return t.contents == Contents::kScratch ? "drop" : "host";
}

std::string contents_word(Contents contents) {
  switch (contents) {
    case Contents::kLive:
      return "live";
    case Contents::kFrozen:
      return "frozen";
    case Contents::kScratch:
      return "scratch";
  }
  return {};
}

std::string arena_word(arena::Policy policy) {
  return policy == arena::Policy::kDiscard ? "discard" : "host";
}

std::string_view kind_word(Move::Kind kind) {
  switch (kind) {
    case Move::Kind::kPause:
      return "pause";
    case Move::Kind::kResume:
      return "resume";
    case Move::Kind::kBackup:
      return "backup";
  }
  return {};
}

std::string capacity_text(Bytes least) {
  const Bytes shown = least < 1_GiB ? round_up(least, 1_MiB) : least;
  // Texts are rounded to the nearest number. If that is too small, the next one is used.
  for (Bytes more;; more += least / 4096) {
    std::string text = to_string(shown + more);
    const Result<Bytes> read = parse_bytes(text);
    if (!read.ok() || *read >= least) return text;
  }
}

namespace {

// One line for the moves before a phase, and one for those that overlap with it.
std::string lines_of(const std::vector<Move>& moves, const std::string& phase,
                     const std::string& which) {
  std::string before, behind;
  for (const Move& m : moves) {
    std::string& line = m.behind ? behind : before;
    line += (line.empty() ? "" : "; ") + move_text(m);
  }
  const auto line = [&](const char* when, const std::string& text) {
    return text.empty() ? "" : format("  {} {}{}: {}\n", when, phase, which, text);
  };
  return line("before", before) + line("during", behind);
}

std::string moves_text(const MemoryPlan& plan) {
  std::string out;
  for (std::size_t p = 0; p < plan.phases.size(); ++p) {
    const PhasePlan& phase = plan.phases[p];
    const PhaseSchedule& s = plan.schedule[p];
    out += lines_of(s.moves, phase.name(), "");
    out += lines_of(s.again, phase.name(), format(" again ({} more in a step)", phase.times - 1));
  }
  return out.empty() ? "\nEverything stays on the device; nothing is offloaded.\n"
                     : "\nTransfers of a step\n" + out;
}

// Phases before the first step, with the tags that no step needs.
std::string once_text(const MemoryPlan& plan) {
  std::string out;
  for (std::size_t p = plan.cycle(); p < plan.phases.size(); ++p) {
    std::string tags;
    for (const TagPlan& tag : plan.tags)
      if (tag.need[p] == Need::kNeed && !plan.in_cycle(tag))
        tags += (tags.empty() ? "" : ", ") + tag.name();
    out += format("\nOnce, before the first step: {}{}\n", plan.phases[p].name(),
                  tags.empty() ? "" : format("; then {} are freed", tags));
  }
  return out;
}

std::string hosted_text(const HostedPlan& hosted) {
  const char* gradients = hosted.gradients.empty() ? "" : " with gradients";
  const char* inputs = hosted.inputs.empty()      ? ""
                       : hosted.gradients.empty() ? " with inputs"
                                                  : " and inputs";
  if (!hosted.gradient_slice.is_zero()) return "this rank's shard of the gradients";
  if (hosted.blocks.empty() && !hosted.inputs.empty())
    return format("inputs of {} layers", hosted.inputs.size());
  if (hosted.blocks.empty())
    return hosted.states.front().name == spec::kSlicePart
               ? std::string("this rank's shard of the states")
               : format("states of {} units", hosted.states.size());
  std::string tables;
  for (const PartPlan& table : hosted.tables)
    tables += table.name == "embed" ? ", the embedding" : ", the head";
  return format("{} layers{}{}{}", hosted.blocks.size(), tables, gradients, inputs);
}

// How much is offloaded, and where.
std::string rest_text(const HostedPlan& hosted) {
  if (!hosted.in_files().is_zero())
    return format("{} in all, read from the model's files through {} of pinned staging buffers",
                  hosted.in_files(), hosted.bytes());
  if (!hosted.on_disk().is_zero())
    return format("{} in all, offloaded to disk through {} of pinned staging buffers",
                  hosted.on_disk(), hosted.bytes());
  return format("{} in all, offloaded to the CPU", hosted.bytes());
}

// Tags with ZeRO shards of states.
std::string sliced_text(const MemoryPlan& plan) {
  std::string out;
  for (const TagPlan& tag : plan.tags) {
    const bool slice = !tag.regions.empty() && tag.regions.front().name == spec::kSlicePart;
    if (slice)
      out += format("\n{}: the largest shard of all ranks, {}; every rank reserves as much\n",
                    tag.name(), tag.regions.front().bytes);
  }
  return out;
}

// Communication: reductions and gathers.
std::string peers_text(const MemoryPlan& plan) {
  std::string out;
  for (const PhasePlan& phase : plan.phases) {
    if (phase.sent.is_zero()) continue;
    out += format("{}{} sends {} to other ranks; exposed communication {:.3g} s",
                  out.empty() ? "" : ", ", phase.name(), phase.sent, phase.peer_seconds);
  }
  return out.empty() ? out : "\n" + out + "\n";
}

// Waits of pipeline stages for each other.
std::string stages_text(const MemoryPlan& plan) {
  std::string out;
  for (const PhasePlan& phase : plan.phases) {
    if (phase.transfer_seconds + phase.bubble_seconds <= 0) continue;
    out += format(
        "{}{} waits {:.3g} s for other stages (bubble) and {:.3g} s for transfers, of {:.3g} s",
        out.empty() ? "" : ", ", phase.name(), phase.bubble_seconds, phase.transfer_seconds,
        phase.seconds);
  }
  return out.empty() ? out : "\n" + out + "\n";
}

// Empty if each micro-batch passes through all blocks before the next one.
std::string together_text(const MemoryPlan& plan, spec::ModelId model) {
  const std::int64_t together = plan.modes.of(model).together;
  return together > 1 ? format(" for {} micro-batches per load", together) : "";
}

// Data that are offloaded and loaded into prefetch buffers, and the cost.
std::string streamed_text(const MemoryPlan& plan) {
  std::string out;
  for (const TagPlan& tag : plan.tags) {
    const TagPlan* const slots = plan.slots_behind(tag);
    if (tag.gathers) {
      out += format(
          "\n{}: each rank has a shard of the weights{}; a layer, the embedding or the head is "
          "all-gathered here while it is used{}{}\n",
          tag.name(),
          tag.hosted.slice.is_zero()
              ? ""
              : format(" ({}, {}), and prefetches the part that is gathered next",
                       tag.hosted.is_on_disk() ? "on disk" : "in host memory", tag.hosted.slice),
          together_text(plan, tag.id.model),
          tag.hosted.inputs.empty() ? "" : "; layer inputs are offloaded to the CPU");
      continue;
    }
    if (tag.id.kind == spec::TagKind::kBlocks && (slots == nullptr || slots->gathers)) {
      out += format("\n{}: all weights of this rank, while the model generates\n", tag.name());
      continue;
    }
    if (slots != nullptr) {
      out += format("\n{}: all layers of {}; ", tag.name(), slots->name());
    } else if (!tag.hosted.empty()) {
      const std::string together = together_text(plan, tag.id.model);
      out += format("\n{}: {}, {}{}; ", tag.name(), hosted_text(tag.hosted), rest_text(tag.hosted),
                    together.empty() ? "" : ", loaded" + together);
    } else {
      continue;
    }
    std::string phases;
    for (std::size_t p = 0; p < plan.phases.size(); ++p) {
      const PhasePlan& phase = plan.phases[p];
      if (phase.fetched.is_zero() || tag.need[p] != Need::kNeed) continue;
      const std::string stored =
          phase.stored.is_zero() ? "" : format(", writes back {}", phase.stored);
      phases += format("{}{} loads {}{} and waits {:.3g} s", phases.empty() ? "" : ", ",
                       phase.name(), phase.fetched, stored, phase.wait_seconds);
    }
    out += phases + "\n";
  }
  return out;
}

// The plan's choices for models with "auto".
std::string activations_text(const MemoryPlan& plan) {
  std::string out;
  for (const ActivationPlan& a : plan.activations) {
    if (a.mode != spec::CheckpointMode::kAuto) continue;
    std::string tensors;
    for (const auto& [tensor, blocks] : a.recomputed())
      tensors += format("{}{} in {}", tensors.empty() ? "" : ", ", to_string(tensor), blocks);
    out += tensors.empty() ? format("{} keeps every activation\n", to_string(a.model))
                           : format("{} recomputes activations of {} layers: {}\n",
                                    to_string(a.model), a.checkpointing.blocks.size(), tensors);
  }
  if (out.empty()) return out;
  return "\n" + out +
         format("operations and transfers of a step take {:.3g} s (estimated)\n", plan.seconds());
}

}  // namespace

std::vector<spec::ModelId> streamed_models(const MemoryPlan& plan) {
  std::vector<spec::ModelId> out;
  for (std::size_t m = 0; m < spec::kModels; ++m) {
    const auto model = static_cast<spec::ModelId>(m);
    if (plan.modes.of(model).layers != spec::Home::kDevice) out.push_back(model);
  }
  return out;
}

bool reads_files(const MemoryPlan& plan, spec::ModelId model) {
  return std::any_of(plan.tags.begin(), plan.tags.end(), [&](const TagPlan& tag) {
    return tag.id.model == model && !tag.hosted.in_files().is_zero();
  });
}

std::string sentence_of(const MemoryPlan& plan) {
  std::string out = format("{:.3g} s per step (estimated) in {}", plan.seconds(), plan.peak);
  out += plan.moved_per_step.is_zero() ? ", nothing offloaded"
                                       : format(", {:.3g} s of it exposed copies of {}",
                                                plan.waiting_seconds(), plan.moved_per_step);
  for (const ActivationPlan& trained : plan.activations) {
    const spec::UpdateMode update = plan.modes.of(trained.model).update;
    if (update != spec::UpdateMode::kJoined)
      out += format("; optimizer_offload of {}: {}", to_string(trained.model), to_string(update));
  }
  for (const spec::ModelId model : streamed_models(plan))
    out += format(
        "; weights of {} offloaded to {}{}", to_string(model),
        reads_files(plan, model) ? "its files" : spec::traits_of(plan.modes.of(model).layers)->name,
        together_text(plan, model));
  for (const ActivationPlan& trained : plan.activations) {
    if (const spec::Home inputs = plan.modes.of(trained.model).inputs;
        inputs != spec::Home::kDevice)
      out += format("; layer inputs of {} offloaded to {}", to_string(trained.model),
                    spec::traits_of(inputs)->name);
  }
  for (const TagPlan& tag : plan.tags) {
    if (tag.gathers && plan.modes.of(tag.id.model).together > 1)
      out += format("; weights of {} all-gathered{}", to_string(tag.id.model),
                    together_text(plan, tag.id.model));
  }
  for (const ActivationPlan& a : plan.activations) {
    const auto tensors = a.recomputed();
    if (a.mode != spec::CheckpointMode::kAuto || tensors.empty()) continue;
    std::size_t most = 0;
    for (const auto& [tensor, blocks] : tensors) most = std::max(most, blocks);
    out += format("; {} recomputes {} of {} tensors in {} of {} layers", to_string(a.model),
                  tensors.size(), a.tensors.size(), most, a.checkpointing.blocks.size());
  }
  std::string changes;
  for (const std::string& assignment : spec::assignments(plan.changes)) changes += " " + assignment;
  return changes.empty() ? out : out + "; with" + changes;
}

std::string MemoryPlan::to_text() const {
  std::vector<std::string> head = {"tag", "bytes"};
  for (const PhasePlan& p : phases) head.push_back(p.times > 0 ? p.name() : p.name() + " (once)");
  Table table(std::move(head));
  for (std::size_t t = 0; t < tags.size(); ++t) {
    std::vector<std::string> row = {tags[t].name(), to_string(tags[t].bytes)};
    for (std::size_t p = 0; p < phases.size(); ++p) row.push_back(cell_word(*this, t, p));
    table.add(std::move(row));
  }
  const auto add_sums = [&](const std::string& name, const auto& of) {
    std::vector<std::string> row = {name, ""};
    for (std::size_t p = 0; p < phases.size(); ++p) row.push_back(to_string(of(p)));
    table.add(std::move(row));
  };
  table.rule();
  add_sums("persistent", [&](std::size_t p) { return schedule[p].persistent; });
  add_sums("temporary", [&](std::size_t p) { return phases[p].transient; });
  add_sums("peak", [&](std::size_t p) { return schedule[p].peak; });

  std::string out = table.text() + once_text(*this) + sliced_text(*this) + peers_text(*this) +
                    stages_text(*this) + streamed_text(*this) + moves_text(*this) +
                    activations_text(*this);
  out += format("\nwithout offloading     {}\n", all_resident);
  out +=
      format("capacity               {}\n", capacity.is_zero() ? "unlimited" : to_string(capacity));
  out += format("planned peak           {}\n", peak);
  out += format(
      "copied per step        {}{}\n", moved_per_step,
      moved_per_step.is_zero()
          ? ""
          : format(", {:.3g} s at up to {:.1f} GB/s (both directions at once {:.1f} GB/s){}",
                   copy_seconds, link.to_device / 1e9, link.both / 1e9,
                   move_seconds < copy_seconds ? format(", {:.3g} s of them exposed", move_seconds)
                                               : ""));
  out += format("host memory for copies {}\n", host_bytes);
  if (!batch_bytes.is_zero()) out += format("host memory for batch  {}\n", batch_bytes);
  if (!disk_bytes.is_zero()) out += format("on disk                {}\n", disk_bytes);
  if (!checkpoint_copy.is_zero() && !copies_checkpoints())
    out += format(
        "checkpoints            training waits while they are written: a copy needs up to {} more "
        "host memory, {} in all, and {} is allowed\n",
        checkpoint_copy, host_bytes + checkpoint_copy, host_budget);
  if (!no_own_kernels.empty())
    out += format("kernels                libtorch's: {}\n", no_own_kernels);
  if (fp8) out += "layers' products       fp8 (e4m3, gradients e5m2) in training and scoring\n";
  if (!rates_from.empty()) out += format("throughput             {}\n", rates_from);
  for (const std::string& assignment : spec::assignments(changes))
    out += format("set by the plan        {}\n", assignment);
  if (!fits()) out += format("The plan is over the capacity by {}.\n", peak - capacity);
  return out;
}

}  // namespace neap::plan
