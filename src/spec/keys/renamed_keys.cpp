#include "spec/keys/renamed_keys.h"

#include <algorithm>
#include <array>

#include "base/format.h"

namespace neap::spec {
namespace {

struct RenamedKey {
  std::string_view old_key, key;
  std::string_view values;  ///< new names of its values; empty: unchanged
};
constexpr std::array kRenamed = {
    RenamedKey{"memory.residency", "memory.offload", R"("all" is "none" now)"},
    RenamedKey{
        "memory.update", "memory.optimizer_offload",
        R"("joined", "split", "streamed", "disk" are "none", "phase_split", "cpu", "nvme" now)"},
    RenamedKey{"memory.disk_folder", "memory.nvme_path", ""},
    RenamedKey{"memory.disk_bandwidth", "memory.nvme_bandwidth", ""},
    RenamedKey{"actor_rollout_ref.rollout.draw_lengths", "actor_rollout_ref.rollout.sample_lengths",
               ""},
};

}  // namespace

std::string explain_renamed_key(std::string_view path) {
  const auto row = std::find_if(kRenamed.begin(), kRenamed.end(),
                                [&](const RenamedKey& key) { return key.old_key == path; });
  if (row == kRenamed.end()) return {};
  const std::string text = format("Its name is {} now", row->key);
  return row->values.empty() ? text : format("{}; {}", text, row->values);
}

}  // namespace neap::spec
