#include "parallel/environment.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "base/format.h"

namespace neap::parallel {
namespace {

constexpr int kMostRanks = 1 << 20;
constexpr int kFirstPort = 15000, kPorts = 15000;  // below the range of ephemeral ports

class Reader {
 public:
  explicit Reader(const Environment::Lookup& lookup) : lookup_(lookup) {}

  [[nodiscard]] std::optional<std::string> text(const char* name) const {
    const char* value = lookup_(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  }
  [[nodiscard]] bool has(const char* name) const { return text(name).has_value(); }

  /// nullopt if the variable is not set.
  [[nodiscard]] Result<std::optional<std::int64_t>> number(const char* name) const {
    const auto value = text(name);
    if (!value) return std::optional<std::int64_t>();
    std::int64_t out = 0;
    const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), out);
    if (error != std::errc() || end != value->data() + value->size()) {
      return Status(ErrorCode::kInvalidArgument,
                    format("{} is \"{}\", which is not a whole number", name, *value));
    }
    return std::optional<std::int64_t>(out);
  }

 private:
  const Environment::Lookup& lookup_;
};

/// The four variables in which a launcher gives a process its rank and size.
struct Names {
  Launcher launcher;
  const char *rank, *size, *local_rank, *local_size;
};
constexpr Names kTorchrunNames{Launcher::kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK",
                               "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpiNames{Launcher::kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                              "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kPmiNames{Launcher::kPmi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
                          "MPI_LOCALNRANKS"};
constexpr Names kSlurmNames{Launcher::kSlurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
                            "SLURM_LOCALID", nullptr};

Status in_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return {ErrorCode::kInvalidArgument,
          format("{} is {}; {} to {} are possible", name, value, low, high)};
}

/// Reads rank and size from one launcher's variables. Returns one rank of one if they are not set.
/// The local size may be missing: Slurm does not give it as a number.
Result<Environment> read_ranks(const Reader& reader, const Names& names) {
  Environment out;
  NEAP_TRY_ASSIGN(const auto rank, reader.number(names.rank));
  NEAP_TRY_ASSIGN(const auto size, reader.number(names.size));
  if (!rank && !size) return out;
  if (!rank || !size) {
    return Status(ErrorCode::kInvalidArgument,
                  format("{} is set but {} is not; {} sets both. Unset it to run one process alone",
                         rank ? names.rank : names.size, rank ? names.size : names.rank,
                         to_string(names.launcher)));
  }
  NEAP_TRY(in_range(names.size, *size, 1, kMostRanks));
  NEAP_TRY(in_range(names.rank, *rank, 0, *size - 1));
  if (*size == 1) return out;
  NEAP_TRY_ASSIGN(const auto local_rank, reader.number(names.local_rank));
  std::optional<std::int64_t> local_size;
  if (names.local_size != nullptr) {
    NEAP_TRY_ASSIGN(local_size, reader.number(names.local_size));
  }
  if (!local_rank) {
    return Status(ErrorCode::kInvalidArgument,
                  format("{} is set but {} is not: which of its machine's devices the rank takes "
                         "is unknown",
                         names.rank, names.local_rank));
  }
  out.launcher = names.launcher;
  out.rank = static_cast<int>(*rank);
  out.size = static_cast<int>(*size);
  const std::int64_t most = local_size.value_or(*size);
  if (names.local_size != nullptr) NEAP_TRY(in_range(names.local_size, most, 1, *size));
  NEAP_TRY(in_range(names.local_rank, *local_rank, 0, most - 1));
  out.local_rank = static_cast<int>(*local_rank);
  out.local_size = static_cast<int>(most);
  return out;
}

/// MASTER_ADDR and MASTER_PORT must both be set, or neither.
Status read_master(const Reader& reader, Environment& out) {
  const auto address = reader.text("MASTER_ADDR");
  NEAP_TRY_ASSIGN(const auto port, reader.number("MASTER_PORT"));
  if (!address && !port) return {};
  if (!address || !port) {
    return {
        ErrorCode::kInvalidArgument,
        format("{} is set but {} is not; ranks find each other by both",
               address ? "MASTER_ADDR" : "MASTER_PORT", address ? "MASTER_PORT" : "MASTER_ADDR")};
  }
  NEAP_TRY(in_range("MASTER_PORT", *port, 1, 65535));
  out.master_address = *address;
  out.master_port = static_cast<int>(*port);
  return {};
}

Status complete_torchrun(const Reader& reader, Environment& out) {
  if (out.master_address.empty()) {
    return {ErrorCode::kInvalidArgument,
            "RANK and WORLD_SIZE are set but MASTER_ADDR and MASTER_PORT are not: the ranks cannot "
            "find each other"};
  }
  out.agent_store = reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (out.agent_store) {
    const std::string attempt = reader.text("TORCHELASTIC_RESTART_COUNT").value_or("0");
    out.store_prefix = "/worker/attempt_" + attempt;
  }
  return {};
}

Status complete_slurm(const Reader& reader, Environment& out) {
  // Slurm gives tasks per machine as a list such as "2(x3),1". The quotient is exact if all
  // machines have the same number.
  NEAP_TRY_ASSIGN(const auto nodes, reader.number("SLURM_STEP_NUM_NODES"));
  if (nodes && *nodes >= 1 && out.size % *nodes == 0)
    out.local_size = static_cast<int>(out.size / *nodes);
  if (!out.master_address.empty()) return {};
  const auto list = reader.text("SLURM_STEP_NODELIST");
  NEAP_TRY_ASSIGN(const auto job, reader.number("SLURM_JOB_ID"));
  NEAP_TRY_ASSIGN(const auto step, reader.number("SLURM_STEP_ID"));
  if (!list || !job) {
    return {ErrorCode::kInvalidArgument,
            format("srun started {} tasks, but {} is not set", out.size,
                   list ? "SLURM_JOB_ID" : "SLURM_STEP_NODELIST")};
  }
  out.master_address = first_host(*list);
  // All ranks of a job derive the same port. Different jobs on a shared machine get different
  // ports.
  out.master_port = kFirstPort + static_cast<int>((*job * 31 + step.value_or(0)) % kPorts);
  return {};
}

}  // namespace

const char* to_string(Launcher launcher) {
  switch (launcher) {
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kOpenMpi:
      return "mpirun (OpenMPI)";
    case Launcher::kPmi:
      return "mpirun (PMI)";
    case Launcher::kSlurm:
      return "srun";
    case Launcher::kNone:
      break;
  }
  return "no launcher";
}

std::string first_host(const std::string& list) {
  const auto end = list.find_first_of(",[");
  if (end == std::string::npos || list[end] == ',') return list.substr(0, end);
  const auto number = list.find_first_of("-,]", end + 1);
  if (number == std::string::npos) return list.substr(0, end);
  const auto close = list.find(']', end);
  // Text after the bracket is part of each name: "rack[1-2]-gpu".
  std::string suffix;
  if (close != std::string::npos) {
    suffix = list.substr(close + 1, list.find(',', close) - close - 1);
  }
  return list.substr(0, end) + list.substr(end + 1, number - end - 1) + suffix;
}

Result<Environment> Environment::detect(const Lookup& lookup) {
  const Reader reader(lookup);
  NEAP_TRY_ASSIGN(Environment torchrun, read_ranks(reader, kTorchrunNames));
  NEAP_TRY_ASSIGN(Environment openmpi, read_ranks(reader, kOpenMpiNames));
  NEAP_TRY_ASSIGN(Environment pmi, read_ranks(reader, kPmiNames));
  Environment slurm;
  // These variables belong to srun's own step. SLURM_PROCID=0 is also set in an sbatch script.
  if (reader.has("SLURM_STEP_NUM_TASKS") && reader.has("SLURM_STEP_ID")) {
    NEAP_TRY_ASSIGN(slurm, read_ranks(reader, kSlurmNames));
  }
  Environment& mpi = openmpi.size > 1 ? openmpi : pmi;
  // mpirun or srun may start torchrun once per machine, so torchrun wins. Variables that were set
  // by hand must agree with the launcher.
  const bool elastic = reader.has("TORCHELASTIC_RUN_ID");
  if (torchrun.size > 1 && mpi.size > 1 && !elastic &&
      (torchrun.rank != mpi.rank || torchrun.size != mpi.size)) {
    return Status(
        ErrorCode::kInvalidArgument,
        format("RANK {} of WORLD_SIZE {} contradicts {}'s rank {} of {}; unset one of "
               "them",
               torchrun.rank, torchrun.size, to_string(mpi.launcher), mpi.rank, mpi.size));
  }
  Environment out;
  for (const Environment* candidate : {&torchrun, &mpi, &slurm}) {
    if (candidate->size > 1) {
      out = *candidate;
      break;
    }
  }
  if (out.size == 1) return out;
  NEAP_TRY(read_master(reader, out));
  out.under_mpi = !elastic && (mpi.size > 1 || slurm.size > 1);
  if (out.launcher == Launcher::kTorchrun) NEAP_TRY(complete_torchrun(reader, out));
  if (out.launcher == Launcher::kSlurm) NEAP_TRY(complete_slurm(reader, out));
  return out;
}

Result<Environment> Environment::detect() {
  return detect([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace neap::parallel
