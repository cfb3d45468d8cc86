#include "cli/program_commands.h"

namespace neap::cli {

Commands make_program_commands() {
  Commands commands;
  commands.push_back(make_bench_command());
  commands.push_back(make_doctor_command());
  commands.push_back(make_plan_command());
  commands.push_back(make_replay_command());
  commands.push_back(make_report_command());
#ifdef NEAP_HAS_REWARDS
  commands.push_back(make_reward_command());
#endif
  commands.push_back(make_run_command());
  return commands;
}

}  // namespace neap::cli
