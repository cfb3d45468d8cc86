// neap merge: adds an adapter to the weights of its base.
#include <ATen/core/ScalarType.h>

#include <filesystem>
#include <optional>
#include <string>

#include "base/format.h"
#include "base/log.h"
#include "cli/checkpoint_path.h"
#include "cli/command.h"
#include "cli/trainer_commands.h"
#include "weights/merge.h"

namespace neap::cli {
namespace {

class MergeCommand final : public Command {
 public:
  [[nodiscard]] std::string name() const override { return std::string(kMerge.name); }
  [[nodiscard]] std::string summary() const override { return std::string(kMerge.summary); }
  void declare(CLI::App& app) override {
    app.add_option(
           "CHECKPOINT", path_,
           "PEFT adapter, model folder, checkpoint (global_step_N) or output folder of a run")
        ->required();
    app.add_option("OUTPUT", output_, "folder to write: a model that transformers and vLLM open")
        ->required();
    app.add_option("--adapter", adapter_, kAdapterHelp)->type_name("FOLDER");
    app.add_option("--dtype", dtype_, "type of the weights; auto: as the base's")
        ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16"}))
        ->capture_default_str();
    app.add_option("--max-shard-size", max_shard_, "weights over this size are several files")
        ->type_name("SIZE")
        ->capture_default_str();
  }
  int run() override;

 private:
  [[nodiscard]] std::optional<at::ScalarType> dtype() const {
    if (dtype_ == "float32") return at::kFloat;
    if (dtype_ == "bfloat16") return at::kBFloat16;
    if (dtype_ == "float16") return at::kHalf;
    return std::nullopt;
  }
  std::string path_, output_, adapter_, dtype_ = "auto", max_shard_ = "5GB";
};

int MergeCommand::run() {
  const spec::ModelFiles files = model_files(path_, adapter_);
  weights::SaveOptions options;
  options.dtype = dtype();
  options.max_shard = value_or_throw(parse_bytes(max_shard_));
  weights::merge_adapter(files, output_, options);
  const std::string adapter =
      files.adapter == files.base ? "its adapter" : "the adapter in " + files.adapter.string();
  log::info(format("wrote {}: {} with {}", output_, files.base.string(), adapter));
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_merge_command() {
  return std::make_unique<MergeCommand>();
}

}  // namespace neap::cli
