// All content of a report, loaded from one input and independent of the output format.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/history.h"
#include "report/move_table.h"
#include "report/phase_table.h"
#include "report/replay_result.h"
#include "report/training_report.h"

namespace neap::report {

struct Report {
  std::string title;     ///< the input's name
  std::string subtitle;  ///< description: source, device, events, length
  bool is_run = false;   ///< true: a run of Neap (with tags); false: a PyTorch snapshot
  History history;
  PhaseTable table;
  MoveTable moves;  ///< of a run
  std::optional<PlanSummary> plan;
  std::optional<MemoryLines> lines;
  TrainingReport training;               ///< of a run's folder
  std::vector<SettingOutcome> settings;  ///< the recorded one first, if known
  std::vector<std::string> notes;        ///< remarks on the input

  /// Headline, notes, table of phases and settings: the command's output.
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] Json to_json() const;  ///< docs/json.md
  /// A number for the page header.
  struct Figure {
    std::string name, value;
    std::string meaning;  ///< a few words; empty if the name is clear
  };
  [[nodiscard]] std::vector<Figure> headline() const;

 private:
  void add_peaks(std::vector<Figure>& out) const;
};

/// A short text for axes and tables: "12.345 s", "3.2 ms".
[[nodiscard]] std::string duration_text(double seconds);

}  // namespace neap::report
