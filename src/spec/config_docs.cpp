#include "spec/config_docs.h"

#include "spec/job.h"
#include "spec/peer_keys.h"

namespace neap::spec {

std::string configuration_reference() {
  Job job;
  const auto of = [](Peer peer) {
    return ConfigTable::Column{std::string(to_string(peer)),
                               [peer](const std::string& key) { return peer_default(peer, key); }};
  };
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
         "sets, where the default is an empty text or list.\n\n"
         "A key that is set and that the job does not read is named in a warning, with the reason; "
         "it is an error where the key that it belongs to was forgotten (`lora_alpha` without "
         "`lora_rank`).\n\n"
         "The columns verl and TRL have their defaults of the same setting (verl b178a3c, January "
         "2026; TRL f2cd577, July 2026), with its name where it is another; "
         "[verl-trl-keys.md](verl-trl-keys.md) has their other keys.\n\n" +
         job.bind().to_markdown({of(Peer::kVerl), of(Peer::kTrl)});
}

}  // namespace neap::spec
