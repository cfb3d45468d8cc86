#include "cli/trainer_main.h"

#include <exception>
#include <string>

#include "base/json.h"
#include "cli/command.h"
#include "cli/trainer_commands.h"

namespace {

neap::cli::Commands trainer_commands() {
  using namespace neap::cli;
  Commands commands;
  commands.push_back(make_train_command());
  commands.push_back(make_generate_command());
  commands.push_back(make_eval_command());
  commands.push_back(make_merge_command());
  return commands;
}

}  // namespace

__attribute__((visibility("default"))) int neap_trainer_main(int argc, char** argv) {
  return neap::cli::run_command(trainer_commands(), argc, argv);
}

__attribute__((visibility("default"))) const char* neap_trainer_facts() {
  static std::string text;
  neap::Json out = neap::Json::object();
  try {
    for (const auto& command : trainer_commands()) {
      const neap::Json facts = command->facts();
      if (facts.is_object()) out.update(facts);
    }
  } catch (const std::exception& e) {
    out["error"] = e.what();
  }
  text = neap::json_text(out);
  return text.c_str();
}
