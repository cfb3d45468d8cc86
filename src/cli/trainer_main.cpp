#include "cli/trainer_main.h"

#include <exception>
#include <string>

#include "base/json.h"
#include "cli/command.h"

__attribute__((visibility("default"))) int neap_trainer_main(int argc, char** argv) {
  return neap::cli::run_command(argc, argv);
}

__attribute__((visibility("default"))) const char* neap_trainer_facts() {
  static std::string text;
  neap::Json out = neap::Json::object();
  try {
    for (const auto& command : neap::cli::registry()) {
      const neap::Json facts = command->facts();
      if (facts.is_object()) out.update(facts);
    }
  } catch (const std::exception& e) {
    out["error"] = e.what();
  }
  text = out.dump(-1, ' ', false, neap::Json::error_handler_t::replace);
  return text.c_str();
}
