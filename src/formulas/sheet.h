// The sheet of `neap plan --formulas`: textbook terms of a job with formula, source and value, what Neap counts
// for it, what a run of it measured, and what a publication reports.
//
// Threads   values and functions without state.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "formulas/sizes.h"

namespace neap::formulas {

enum class Quantity : std::uint8_t { kParameters, kBytes, kRatio };

/// What a publication reports of a term.
struct Published {
  double value = 0;
  double rounded_to = 0;  ///< the unit of its last digit
  std::string why;        ///< the formula's value is another one
  /// The formula's value, rounded like the published one, is the published one.
  [[nodiscard]] bool agrees(double formula) const;
};

/// What a run recorded of a term (formulas/measured.h).
struct Measurement {
  double value = 0;
  std::string source;  ///< "memory.ntrace: actor.weights"; several behind commas
};

struct Line {
  std::string id;  ///< "actor.weights", "rank.total"
  std::string term;
  std::string formula;
  std::string source;
  Quantity quantity = Quantity::kBytes;
  double value = 0;
  std::optional<double> counted{};  ///< as the job's plan counts it
  std::string why{};                ///< what is counted differs from the value
  std::optional<Measurement> measured{};
  std::optional<Published> published{};
};
struct Section {
  std::string title;
  std::vector<Line> lines;
};
/// Model states of a rank by the number of data-parallel ranks.
struct StatesByRanks {
  struct Row {
    std::string term;     ///< "ZeRO-1"
    std::string formula;  ///< "4 N + 12 N / d"
    std::vector<double> bytes;
  };
  bool whole = true;  ///< N is all of the model: no tensor-parallel ranks or pipeline stages
  std::vector<std::int64_t> ranks;
  std::vector<Row> rows;
};
struct Sheet {
  std::string letters;  ///< "l = 96, h = 12288, ..."
  std::vector<Section> sections;
  StatesByRanks by_ranks;            ///< empty where nothing trains
  std::vector<std::string> remarks;  ///< sentences on what a publication says besides numbers
  /// Null: there is no such line.
  [[nodiscard]] Line* find(std::string_view id);
  [[nodiscard]] const Line* find(std::string_view id) const;
};

/// A counted value differs from the formula's by more than rounding of regions explains.
[[nodiscard]] bool differs(double formula, double counted);

/// Those of models that ranks divide each in its own way.
using DegreesOfModels = std::map<spec::ModelId, Degrees>;
/// The sheet of a job whose models are divided like this, but for those of `own`; data 0: by the job's ranks. Fails on
/// degrees that the models cannot have.
[[nodiscard]] Result<Sheet> make_sheet(const JobSizes& sizes, const Degrees& degrees,
                                       const DegreesOfModels& own = {});

enum class Scale : std::uint8_t { kGib, kGb };
[[nodiscard]] std::string to_text(const Sheet& sheet, Scale scale);
[[nodiscard]] Json to_json(const Sheet& sheet);

}  // namespace neap::formulas
