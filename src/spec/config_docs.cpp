#include "spec/config_docs.h"

#include "spec/job.h"

namespace neap::spec {

std::string configuration_reference() {
  Job job;
  return "# Configuration\n\n"
         "<!-- Written by `neap plan --reference`; a test compares. Change the tables in "
         "src/spec/*_keys.cpp instead. -->\n\n"
         "One TOML file serves `neap train` and `neap plan`. On the command line, "
         "`key.path=value` behind the file changes single keys:\n\n"
         "```\n"
         "neap plan ppo.toml device.memory=24GiB "
         "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4\n"
         "```\n\n"
         "Names are verl's where verl has one. Sizes carry a unit (`\"384MiB\"`, `\"24GiB\"`); "
         "relative paths start at the file's folder. An unknown key is an error that names the "
         "nearest known one. An empty value (`trainer.stop_metric=`) takes back what the file "
         "sets, where the default is an empty text or list.\n\n" +
         job.bind().to_markdown();
}

}  // namespace neap::spec
