#include "parallel/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace neap::parallel {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Result<Environment> detect(const Variables& variables) {
  return Environment::detect([&](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  });
}

std::string error(const Variables& variables) {
  const auto result = detect(variables);
  EXPECT_FALSE(result.ok());
  if (result.ok()) return "";
  EXPECT_EQ(result.status().code(), ErrorCode::kInvalidArgument);
  return result.status().message();
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node7"},
                             {"MASTER_PORT", "29400"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_RUN_ID", "x"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kSlurm = {{"SLURM_JOB_ID", "1234"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", "6"},
                          {"SLURM_STEP_NUM_TASKS", "8"},
                          {"SLURM_LOCALID", "2"},
                          {"SLURM_STEP_NUM_NODES", "2"},
                          {"SLURM_NTASKS", "8"},
                          {"SLURM_STEP_NODELIST", "gpu[07-08]"},
                          {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}};

Variables with(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}
Variables without(Variables base, const std::string& name) {
  base.erase(name);
  return base;
}

TEST(Environment, AProcessByItselfIsOneRank) {
  const auto e = detect({});
  ASSERT_TRUE(e.ok());
  EXPECT_EQ(e->size, 1);
  EXPECT_EQ(e->rank, 0);
  EXPECT_EQ(e->launcher, Launcher::kNone);
  EXPECT_FALSE(e->under_mpi);
}

TEST(Environment, ReadsTorchrunWithItsAgentsStore) {
  const auto e = detect(kTorchrun);
  ASSERT_TRUE(e.ok()) << e.status().message();
  EXPECT_EQ(e->launcher, Launcher::kTorchrun);
  EXPECT_EQ(e->rank, 5);
  EXPECT_EQ(e->size, 8);
  EXPECT_EQ(e->local_rank, 1);
  EXPECT_EQ(e->local_size, 4);
  EXPECT_EQ(e->master_address, "node7");
  EXPECT_EQ(e->master_port, 29400);
  EXPECT_TRUE(e->agent_store);
  EXPECT_EQ(e->store_prefix, "/worker/attempt_2");
  EXPECT_FALSE(e->under_mpi);
  const auto by_hand =
      detect(without(without(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE"), "TORCHELASTIC_RUN_ID"));
  ASSERT_TRUE(by_hand.ok());
  EXPECT_FALSE(by_hand->agent_store);
  EXPECT_EQ(by_hand->store_prefix, "");
}

TEST(Environment, ReadsOpenMpiAndPmi) {
  const auto e = detect(kOpenMpi);
  ASSERT_TRUE(e.ok()) << e.status().message();
  EXPECT_EQ(e->launcher, Launcher::kOpenMpi);
  EXPECT_EQ(e->rank, 3);
  EXPECT_EQ(e->size, 4);
  EXPECT_EQ(e->local_rank, 1);
  EXPECT_EQ(e->local_size, 2);
  EXPECT_TRUE(e->under_mpi);
  EXPECT_EQ(e->master_address, "");
  const auto pmi = detect(
      {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  ASSERT_TRUE(pmi.ok());
  EXPECT_EQ(pmi->launcher, Launcher::kPmi);
  EXPECT_EQ(pmi->rank, 1);
  EXPECT_TRUE(pmi->under_mpi);
}

TEST(Environment, ReadsSrunAndDerivesAMeetingPlace) {
  const auto e = detect(kSlurm);
  ASSERT_TRUE(e.ok()) << e.status().message();
  EXPECT_EQ(e->launcher, Launcher::kSlurm);
  EXPECT_EQ(e->rank, 6);
  EXPECT_EQ(e->size, 8);
  EXPECT_EQ(e->local_rank, 2);
  EXPECT_EQ(e->local_size, 4);
  EXPECT_EQ(e->master_address, "gpu07");
  EXPECT_GE(e->master_port, 1024);
  EXPECT_LT(e->master_port, 32768) << "below the range of ephemeral ports";
  EXPECT_TRUE(e->under_mpi);
  const auto other = detect(with(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}}));
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(other->master_port, e->master_port);
  const auto given = detect(with(kSlurm, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "77"}}));
  ASSERT_TRUE(given.ok());
  EXPECT_EQ(given->master_address, "a");
  EXPECT_EQ(given->master_port, 77);
}

TEST(Environment, AnAllocationAroundOneProcessStartsNobody) {
  // What an sbatch script sees: the allocation's tasks, no step of srun's.
  const auto batch = detect({{"SLURM_JOB_ID", "1"},
                             {"SLURM_NTASKS", "8"},
                             {"SLURM_PROCID", "0"},
                             {"SLURM_LOCALID", "0"}});
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->size, 1);
  const auto one_task =
      detect(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}));
  ASSERT_TRUE(one_task.ok());
  EXPECT_EQ(one_task->size, 1);
  EXPECT_EQ(one_task->launcher, Launcher::kNone);
  const auto alone = detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->size, 1);
}

TEST(Environment, TheInnermostLauncherWins) {
  // mpirun in an allocation: its daemons run as a step of one task a machine.
  const auto mpi = detect(with(kSlurm, kOpenMpi));
  ASSERT_TRUE(mpi.ok()) << mpi.status().message();
  EXPECT_EQ(mpi->launcher, Launcher::kOpenMpi);
  EXPECT_EQ(mpi->size, 4);
  // torchrun once a machine by srun.
  const auto torchrun = detect(with(kSlurm, kTorchrun));
  ASSERT_TRUE(torchrun.ok()) << torchrun.status().message();
  EXPECT_EQ(torchrun->launcher, Launcher::kTorchrun);
  EXPECT_FALSE(torchrun->under_mpi);
}

TEST(Environment, HalfSetOnesNameWhatIsMissing) {
  EXPECT_THAT(error({{"RANK", "1"}}), HasSubstr("RANK is set but WORLD_SIZE is not"));
  EXPECT_THAT(error({{"WORLD_SIZE", "2"}}), HasSubstr("WORLD_SIZE is set but RANK is not"));
  EXPECT_THAT(error(without(kTorchrun, "LOCAL_RANK")), HasSubstr("LOCAL_RANK is not"));
  EXPECT_THAT(error(without(kTorchrun, "MASTER_PORT")), HasSubstr("MASTER_PORT is not"));
  EXPECT_THAT(error(without(without(kTorchrun, "MASTER_PORT"), "MASTER_ADDR")),
              HasSubstr("MASTER_ADDR and MASTER_PORT are not"));
  EXPECT_THAT(error(without(kOpenMpi, "OMPI_COMM_WORLD_SIZE")),
              HasSubstr("OMPI_COMM_WORLD_SIZE is not"));
}

TEST(Environment, WrongValuesAreNamed) {
  EXPECT_THAT(error(with(kTorchrun, {{"RANK", "eight"}})), HasSubstr("RANK is \"eight\""));
  EXPECT_THAT(error(with(kTorchrun, {{"RANK", "8"}})), HasSubstr("RANK is 8; 0 to 7"));
  EXPECT_THAT(error(with(kTorchrun, {{"WORLD_SIZE", "0"}})), HasSubstr("WORLD_SIZE is 0"));
  EXPECT_THAT(error(with(kTorchrun, {{"LOCAL_RANK", "4"}})), HasSubstr("LOCAL_RANK is 4"));
  EXPECT_THAT(error(with(kTorchrun, {{"MASTER_PORT", "70000"}})), HasSubstr("MASTER_PORT"));
  const Variables by_hand =
      without(without(kTorchrun, "TORCHELASTIC_RUN_ID"), "TORCHELASTIC_USE_AGENT_STORE");
  EXPECT_THAT(error(with(by_hand, kOpenMpi)), HasSubstr("contradicts"));
}

TEST(FirstHost, ReadsSlurmsCompressedLists) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("node3,node9"), "node3");
  EXPECT_EQ(first_host("gpu[07-09,12],login1"), "gpu07");
  EXPECT_EQ(first_host("gpu[3,5]"), "gpu3");
  EXPECT_EQ(first_host("rack[1-2]-gpu,x"), "rack1-gpu");
}

}  // namespace
}  // namespace neap::parallel
