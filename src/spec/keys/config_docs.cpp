#include "spec/keys/config_docs.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/format.h"
#include "spec/job/job.h"
#include "spec/keys/peer_keys.h"
#include "spec/types/presets.h"

namespace neap::spec {
namespace {

constexpr std::string_view kWritten =
    "<!-- Written by `NEAP_UPDATE_GOLDEN=1 plan_golden_test`; a test compares. Change the tables "
    "in "
    "src/spec instead. -->\n\n";

constexpr std::string_view kIntro =
    "One TOML file describes a job for `neap train`, `neap eval` and `neap plan`. "
    "`key.path=value` after the file changes a key:\n\n"
    "```\n"
    "neap plan ppo.toml device.memory=24GiB "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4\n"
    "```\n\n"
    "- Names are verl's if verl has the key. Sizes have a unit (`\"384MiB\"`, `\"24GiB\"`). "
    "Relative paths start at the file's folder.\n"
    "- An unknown key is an error that names the nearest known one.\n"
    "- Texts and lists without a default are empty. Minimums of 0 and 1 and limits above 1000 are "
    "left out here.\n"
    "- A size of `parallel` that can be `auto` is then [chosen by the "
    "plan](several-gpus.md#4-let-the-plan-choose).\n"
    "- An empty value (`trainer.stop_metric=`) restores a default that is an empty text or list.\n"
    "- Keys that are \"as in\" another section have the type, default and meaning that they have "
    "there.\n"
    "- \"Read if\" says when a key has an effect, \"Only if\" adds a condition. A key without "
    "effect "
    "is a warning that says why, or an error if the key that enables it is missing (`lora_alpha` "
    "without `lora_rank`).\n\n"
    "Search [keys of verl and TRL](verl-trl-keys.md) for a key that you know from there.\n\n";

struct Chapter {
  std::string_view file, title;
  std::array<std::string_view, 3> sections;  ///< first elements of key paths
};

constexpr std::array kChapters = {
    Chapter{
        "configuration/device.md", "Device, memory and ranks", {"device", "memory", "parallel"}},
    Chapter{"configuration/data.md", "Data", {"data"}},
    Chapter{"configuration/actor.md", "Actor, rollout and reference", {"actor_rollout_ref"}},
    Chapter{"configuration/critic.md", "Critic", {"critic"}},
    Chapter{"configuration/reward.md", "Rewards", {"reward_model", "reward"}},
    Chapter{"configuration/algorithm.md", "Algorithms", {"algorithm", "dpo"}},
    Chapter{"configuration/trainer.md", "Trainer", {"trainer"}},
};

/// An index into kChapters, or the number of chapters for a section of the first page.
std::size_t chapter_of(std::string_view heading) {
  if (heading.starts_with("[[")) heading.remove_prefix(2);
  const std::string_view name = heading.substr(0, heading.find_first_of(".]\n"));
  const auto has = [&](const Chapter& chapter) {
    return std::find(chapter.sections.begin(), chapter.sections.end(), name) !=
           chapter.sections.end();
  };
  return static_cast<std::size_t>(std::find_if(kChapters.begin(), kChapters.end(), has) -
                                  kChapters.begin());
}

std::string list_of_pages() {
  std::string out = "| page | sections |\n| --- | --- |\n";
  for (const Chapter& chapter : kChapters) {
    std::string sections;
    for (const std::string_view section : chapter.sections)
      if (!section.empty()) sections += format("{}`{}`", sections.empty() ? "" : ", ", section);
    out += format("| [{}]({}) | {} |\n", chapter.title, chapter.file, sections);
  }
  return out + "| [Presets](configuration/presets.md) | defaults of verl, OpenRLHF and TRL |\n\n";
}

/// Replaces "docs/training.md" in a key's help by a link from a page in docs/configuration/.
std::string linked(std::string text) {
  constexpr std::string_view kFolder = "docs/", kEnd = ".md", kHere = "configuration/";
  for (std::size_t at = 0; (at = text.find(kFolder, at)) != std::string::npos;) {
    const std::size_t end = text.find(kEnd, at);
    if (end == std::string::npos) break;
    const std::string page =
        text.substr(at + kFolder.size(), end + kEnd.size() - at - kFolder.size());
    const std::string link = page.starts_with(kHere)
                                 ? format("[{0}]({0})", page.substr(kHere.size()))
                                 : format("[{0}](../{0})", page);
    text.replace(at, kFolder.size() + page.size(), link);
    at += link.size();
  }
  return text;
}

/// Makes links of "are as in `SECTION`." on the page of `chapter`.
std::string with_sections_linked(std::string text, std::size_t chapter) {
  constexpr std::string_view kStart = " are as in `", kEnd = "`.";
  for (std::size_t at = 0; (at = text.find(kStart, at)) != std::string::npos;) {
    const std::size_t begin = at + kStart.size(), end = text.find(kEnd, begin);
    if (end == std::string::npos) break;
    const std::string section = text.substr(begin, end - begin);
    std::string anchor = section;
    std::erase(anchor, '.');
    const std::size_t there = chapter_of(section);
    std::string_view file = there == chapter ? std::string_view{} : kChapters.at(there).file;
    file.remove_prefix(file.empty() ? 0 : file.rfind('/') + 1);
    const std::string link = format(" are as in [`{}`]({}#{}).", section, file, anchor);
    text.replace(at, end + kEnd.size() - at, link);
    at += link.size();
  }
  return text;
}

/// Text below the tables of the memory chapter.
std::string techniques() {
  std::string out =
      "\n## Techniques of `memory.allow`\n\n| value | the plan may | default |\n| --- | --- | --- "
      "|\n";
  const std::vector<Measure> allowed = default_measures();
  std::string others;  // the measures that can change results
  for (std::size_t m = 0; m < kMeasures; ++m) {
    const auto measure = static_cast<Measure>(m);
    const bool is_default = std::find(allowed.begin(), allowed.end(), measure) != allowed.end();
    out += format("| `{}` | {} | {} |\n", to_string(measure), describe(measure),
                  is_default ? "yes" : "no");
    if (!keeps_bits(measure))
      others += format("{}`{}`", others.empty() ? "" : ", ", to_string(measure));
  }
  return out +
         format("\nResults are bitwise identical with and without a technique, except for {}.\n",
                others);
}

std::string cell(std::string_view value) {
  return value.empty() ? "-" : format("`{}`", value);
}

ReferencePage presets_page() {
  std::string out = format(
      "# Configuration: Presets\n\n{}[All pages](../configuration.md)\n\n"
      "`algorithm.preset` gives keys that the job does not set these defaults; `-` is Neap's "
      "default. Versions: verl ({}), OpenRLHF 0.11.0 (3c3be623), TRL ({}). "
      "[algorithms.md](../algorithms.md#presets) has the differences that remain.\n\n"
      "| key | tasks | verl | OpenRLHF | TRL |\n| --- | --- | --- | --- | --- |\n",
      kWritten, kVerlVersion, kTrlVersion);
  for (const PresetEntry& entry : preset_entries()) {
    std::string tasks;
    for (const Task task : entry.tasks)
      tasks += (tasks.empty() ? "" : ", ") + std::string(to_string(task));
    if (entry.estimator) tasks += format(" with `{}`", to_string(*entry.estimator));
    out += format("| `{}` | {} | {} | {} | {} |\n", entry.key, tasks, cell(entry.values[0]),
                  cell(entry.values[1]), cell(entry.values[2]));
  }
  return {"configuration/presets.md", out};
}

}  // namespace

std::vector<ReferencePage> configuration_reference() {
  Job job;
  const std::string all = job.bind().to_markdown();
  std::vector<std::string> texts(kChapters.size() + 1);
  constexpr std::string_view kHeading = "## ";
  for (std::size_t begin = 0; begin < all.size();) {
    std::size_t end = all.find("\n## ", begin);
    end = end == std::string::npos ? all.size() : end + 1;
    const std::string_view section = std::string_view(all).substr(begin, end - begin);
    texts[chapter_of(section.substr(kHeading.size()))] += section;
    begin = end;
  }
  std::vector<ReferencePage> pages;
  pages.push_back({"configuration.md", format("# Configuration\n\n{}{}{}{}", kWritten, kIntro,
                                              list_of_pages(), texts.back())});
  for (std::size_t i = 0; i < kChapters.size(); ++i)
    pages.push_back(
        {std::string(kChapters[i].file),
         format("# Configuration: {}\n\n{}[All pages](../configuration.md)\n\n{}",
                kChapters[i].title, kWritten, with_sections_linked(linked(texts[i]), i))});
  pages[1].text += techniques();  // the chapter of [memory]
  pages.push_back(presets_page());
  // Sections are separated by an empty line; a page does not end with one.
  for (ReferencePage& page : pages)
    while (page.text.ends_with("\n\n")) page.text.pop_back();
  return pages;
}

}  // namespace neap::spec
