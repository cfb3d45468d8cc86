// Any adapter_config.json is refused or chooses layers of the model, in time, and is read again as it
// was written.
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "spec/model/adapter_config.h"
#include "spec/model/layout.h"

namespace {

using namespace neap;        // NOLINT(google-build-using-namespace)
using namespace neap::spec;  // NOLINT(google-build-using-namespace)

void require(bool holds) {
  if (!holds) std::abort();
}

const Architecture& model() {
  static const Architecture kShape = *Architecture::from_json({{"model_type", "llama"},
                                                               {"vocab_size", 40},
                                                               {"hidden_size", 16},
                                                               {"intermediate_size", 24},
                                                               {"num_hidden_layers", 3},
                                                               {"num_attention_heads", 4},
                                                               {"num_key_value_heads", 2},
                                                               {"tie_word_embeddings", false}},
                                                              "model");
  return kShape;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<Json> json = parse_json(text, "fuzz");
  if (!json.ok()) return 0;
  const Result<AdapterConfig> config = AdapterConfig::from_json(*json, "fuzz", model());
  if (!config.ok()) return 0;
  const LoraShape& lora = config->lora;
  require(!lora.modules.empty());
  for (const auto& [path, module] : lora.modules) {
    require(module.rank > 0 && lora.of(path) == module);
    require(std::isfinite(lora.scale(module)));
  }
  if (!config->check_trainable("fuzz", model()).ok()) return 0;
  require(!lora_layout(model(), Head::kLanguageModel, lora).empty());
  const Json written = adapter_json(lora, model(), Head::kLanguageModel, "base");
  const Result<AdapterConfig> again = AdapterConfig::from_json(written, "written", model());
  require(again.ok() && again->lora.modules == lora.modules);
  return 0;
}
