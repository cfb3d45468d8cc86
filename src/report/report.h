// Everything a report shows, loaded from one input, independent of the output format.
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
  std::string subtitle;  ///< what it is: source, device, events, length
  bool is_run = false;   ///< a run of Neap's (tags); else a snapshot of PyTorch's allocator
  History history;
  PhaseTable table;
  MoveTable moves;  ///< of a run
  std::optional<PlanSummary> plan;
  std::optional<MemoryLines> lines;
  TrainingReport training;               ///< of a run's folder
  std::vector<SettingOutcome> settings;  ///< the recorded one first, when known
  std::vector<std::string> notes;        ///< what the reader should know about the input

  /// Headline, notes, table of phases, settings: what the command prints.
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] Json to_json() const;  ///< docs/report.md
  /// A number for the head of a page.
  struct Figure {
    std::string name, value;
    std::string meaning;  ///< a few words; empty where the name says it
  };
  [[nodiscard]] std::vector<Figure> headline() const;

 private:
  void add_peaks(std::vector<Figure>& out) const;
};

/// "12.345 s", "3.2 ms": short, for axes and tables.
[[nodiscard]] std::string duration_text(double seconds);

}  // namespace neap::report
