#include "plan/counting/transients.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/format.h"
#include "plan/counting/counted_backend.h"
#include "plan/rates/device_rates.h"
#include "step/counting/cublas_workspaces.h"
#include "step/generation/decode_graphs.h"

namespace neap::plan {
namespace {

// From the second round on, every round finds the pool in the same state.
constexpr std::int64_t kRepeats = 2;
constexpr std::int64_t kDecodeSteps = 48;

// In the pool before the phase.
struct CublasWorkspaces {
  explicit CublasWorkspaces(step::CountingOps& ops) {
    if (!ops.profile().cuda) return;
    const auto matrix = [&] {
      return ops.empty({step::kCublasSide, step::kCublasSide}, step::Dtype::kBfloat16);
    };
    const step::CountedTensor factor = matrix();
    for (const step::CublasWorkspace& workspace : step::kCublasWorkspaces) {
      const step::CountedTensor product = matrix();
      workspaces.push_back(ops.empty({workspace.bytes}, step::Dtype::kBool));
    }
  }
  std::vector<step::CountedTensor> workspaces;
};

Status in_phase(Status status, const spec::Phase& phase) {
  if (status.ok()) return status;
  return std::move(status).with_context(format("predicting phase \"{}\"", to_string(phase.id)));
}

}  // namespace

Result<cache::Settings> pool_settings(const spec::Job& job, const Target& target) {
  cache::Settings settings;
  settings.expandable_segments = true;
  if (target.cuda) {
    for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
      if (const char* value = std::getenv(name); value != nullptr)
        return cache::Settings::parse(value);
    }
    return settings;
  }
  if (!job.memory.alloc_conf.empty()) return cache::Settings::parse(job.memory.alloc_conf);
  settings.large_segment_size = 2_MiB;
  return settings;
}

step::KernelProfile kernel_profile(const spec::Job& job, const Target& target,
                                   const spec::Phase* phase) {
  step::KernelProfile profile;
  profile.cuda = target.cuda;
  profile.threads = target.threads;
  profile.deterministic = job.trainer.deterministic;
  profile.own = own_kernels(job, target);
  profile.fp8 = job.device.multiplies_in_fp8();
  profile.graphs = target.cuda && phase != nullptr && phase->graphs;
  profile.device.multiprocessors = target.multiprocessors;
  profile.rates =
      target.rates.bytes > 0 ? target.rates : default_rates(target.cuda, target.threads);
  const bool generates = phase != nullptr && phase->is_of_rollout();
  const spec::Mesh mesh = phase != nullptr ? job.mesh(phase->model) : job.mesh();
  const spec::Mesh divided = generates ? job.generation_mesh() : mesh;
  profile.tensor_ranks = divided.size(spec::Axis::kTensor);
  profile.context_ranks = mesh.size(spec::Axis::kContext);
  if (target.cuda && job.ranks() > 1)
    profile.rates =
        rates_among_ranks(profile.rates, profile.tensor_ranks > 1 || profile.context_ranks > 1);
  const Network network =
      network_of(job, target.network ? *target.network : default_network(target.cuda));
  for (std::size_t a = 0; a < spec::kGroups; ++a) {
    const auto axis = static_cast<spec::Axis>(a);
    profile.peers[a] =
        axis_rates(network, axis == spec::Axis::kTensor ? divided : mesh, spec::group_of(axis));
  }
  profile.link = {target.link.to_device, target.link.to_host, target.link.both};
  const double disk = job.memory.disk_rate();
  profile.disk = {disk, disk, disk};
  return profile;
}

Result<PhasePlan> predict_phase(const spec::Job& job, const JobModels& models, const Target& target,
                                const spec::Phase& phase, Accuracy accuracy) {
  NEAP_TRY_ASSIGN(const cache::Settings settings, pool_settings(job, target));
  const step::KernelProfile profile = kernel_profile(job, target, &phase);
  CountedMemory memory(settings);
  const bool exact = accuracy == Accuracy::kExact;
  step::CountingOps ops(memory, profile, exact ? kRepeats : 1);
  PassSeconds passes;
  {
    const CublasWorkspaces workspaces(ops);
    passes = count_phase(ops, job, models, compute_dtype(job, target), phase, kDecodeSteps);
  }
  NEAP_TRY(in_phase(memory.status(), phase));
  const step::Work& work = ops.work();
  PhasePlan plan{phase.id,
                 memory.peak_reserved(),
                 memory.peak_allocated(),
                 work.elapsed(),
                 Bytes(static_cast<std::uint64_t>(work.fetched_bytes)),
                 Bytes(static_cast<std::uint64_t>(work.stored_bytes)),
                 work.wait_seconds,
                 Bytes(static_cast<std::uint64_t>(work.peer_bytes)),
                 work.peer_seconds};
  plan.axis_seconds = work.axis_seconds;
  plan.passes = passes;
  plan.flops = work.flops;
  const step::CountedGraphs& graphs = ops.graphs_made();
  plan.graph_scratch = Bytes(graphs.scratch());
  plan.graph_nodes = Bytes(std::min(graphs.count(), step::kMostGraphs) *
                           static_cast<std::uint64_t>(graphs.kernels()) * step::kGraphNodeBytes);
  plan.disk_read = Bytes(static_cast<std::uint64_t>(work.disk_read));
  plan.disk_written = Bytes(static_cast<std::uint64_t>(work.disk_written));
  return plan;
}

struct SharedPool::Workspaces {
  Workspaces(CountedMemory& memory, const step::KernelProfile& profile)
      : ops(memory, profile, 1), held(ops) {}
  step::CountingOps ops;
  CublasWorkspaces held;
};

SharedPool::SharedPool(const cache::Settings& settings, const step::KernelProfile& profile)
    : memory_(settings), workspaces_(std::make_unique<Workspaces>(memory_, profile)) {}

SharedPool::~SharedPool() = default;

Result<Bytes> SharedPool::run(const spec::Job& job, const JobModels& models, const Target& target,
                              const spec::Phase& phase) {
  step::CountingOps ops(memory_, kernel_profile(job, target, &phase), kRepeats);
  count_phase(ops, job, models, compute_dtype(job, target), phase, kDecodeSteps);
  NEAP_TRY(in_phase(memory_.status(), phase));
  return memory_.peak_reserved();
}

}  // namespace neap::plan
