// The sheet of `neap plan --formulas`. It lists textbook terms of a job with formula, source and
// value. Next to them are the bytes that Neap counts, the measurements of a run, and published
// values.
//
// Threads   values and stateless functions.
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

/// The published value of a term.
struct Published {
  double value = 0;
  double rounded_to = 0;  ///< unit of the last published digit
  std::string why;        ///< reason if the formula's value differs
  /// Whether the formula's value, rounded like the published one, equals it.
  [[nodiscard]] bool agrees(double formula) const;
};

/// The measurement of a term in a run (formulas/measured.h).
struct Measurement {
  double value = 0;
  std::string source;  ///< "memory.ntrace: actor.weights"; several are separated by commas
};

struct Line {
  std::string id;  ///< "actor.weights", "rank.total"
  std::string term;
  std::string formula;
  std::string source;
  Quantity quantity = Quantity::kBytes;
  double value = 0;
  std::optional<double> counted{};  ///< counted in the job's plan
  std::string why{};                ///< reason if the counted value differs
  std::optional<Measurement> measured{};
  std::optional<Published> published{};
};
struct Section {
  std::string title;
  std::vector<Line> lines;
};
/// Model states of a rank, by the number of data-parallel ranks.
struct StatesByRanks {
  struct Row {
    std::string term;     ///< "ZeRO-1"
    std::string formula;  ///< "4 N + 12 N / d"
    std::vector<double> bytes;
  };
  bool whole = true;  ///< N is the whole model: neither tensor nor pipeline parallelism
  std::vector<std::int64_t> ranks;
  std::vector<Row> rows;
};
struct Sheet {
  std::string letters;  ///< "l = 96, h = 12288, ..."
  std::vector<Section> sections;
  StatesByRanks by_ranks;            ///< empty if nothing trains
  std::vector<std::string> remarks;  ///< sentences on other statements of a publication
  /// Null if the line does not exist.
  [[nodiscard]] Line* find(std::string_view id);
  [[nodiscard]] const Line* find(std::string_view id) const;
};

/// Whether a counted value differs from the formula's by more than the rounding of regions
/// explains.
[[nodiscard]] bool differs(double formula, double counted);

/// Parallel sizes of models that have their own.
using DegreesOfModels = std::map<spec::ModelId, Degrees>;
/// Makes the sheet of a job whose models have these parallel sizes, except the models in `own`.
/// data 0: from the job's ranks. Fails on parallel sizes that the models cannot have.
[[nodiscard]] Result<Sheet> make_sheet(const JobSizes& sizes, const Degrees& degrees,
                                       const DegreesOfModels& own = {});

enum class Scale : std::uint8_t { kGib, kGb };
[[nodiscard]] std::string to_text(const Sheet& sheet, Scale scale);
[[nodiscard]] Json to_json(const Sheet& sheet);

}  // namespace neap::formulas
