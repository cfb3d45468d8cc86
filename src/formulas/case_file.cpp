#include "formulas/case_file.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>

#include "base/config.h"
#include "base/file.h"
#include "base/format.h"

namespace neap::formulas {
namespace {

// Last parts of the ids of lines that publications report.
constexpr std::array kTerms = {"parameters",    "approximate", "weights",       "gradients",
                               "optimizer",     "states",      "activations",   "kv",
                               "total",         "generation",  "mixed_weights", "mixed_gradients",
                               "mixed_moments", "bubble"};

struct CaseKeys {
  Case values;
  std::map<std::string, double> published;
  std::map<std::string, std::string> why;
};

void bind_case(ConfigTable& t, CaseKeys& keys) {
  Case& c = keys.values;
  t.bind("name", &c.name, "Of the case.");
  t.bind("set", &c.set, "Keys of the job, \"key.path=value\".");
  t.bind("batch", &c.batch.sequences, "Sequences of a micro-batch.").at_least(1);
  t.bind("length", &c.batch.length, "Tokens of a sequence.").at_least(2);
  t.bind("micro_batches", &c.batch.micro_batches, "Micro-batches of an update.").at_least(1);
  t.bind("tensor", &c.degrees.tensor, "Tensor-parallel ranks.").at_least(1);
  t.bind("pipeline", &c.degrees.pipeline, "Pipeline stages.").at_least(1);
  t.bind("data", &c.degrees.data, "Data-parallel ranks; 0: the job's.").at_least(0);
  t.bind("zero", &c.degrees.zero, "Stage of ZeRO.").at_least(0).at_most(3);
  t.bind("sequence_parallel", &c.degrees.sequence_parallel, "Sequence parallelism.");
  t.bind("rounded_to", &c.rounded_to, "Unit of the last published digit.").at_least(0);
  t.bind("device", &c.device, "Memory of a rank's device.").at_least(0);
  t.bind("fits", &c.fits, "The formulas' training fits into it.");
  for (const char* term : kTerms) {
    t.bind(std::string("published.") + term, &keys.published[term], "Published value.");
    t.bind(std::string("why.") + term, &keys.why[term], "Why the formula's value is another.");
  }
}

Case case_of(const CaseKeys& keys) {
  Case out = keys.values;
  for (const auto& [term, value] : keys.published)
    if (value != 0) out.published.push_back({term, value, keys.why.at(term)});
  return out;
}

double unit_of(Scale scale) {
  return scale == Scale::kGib ? 1024.0 * 1024 * 1024 : 1e9;
}

}  // namespace

Result<bool> has_cases(const std::filesystem::path& file) {
  NEAP_TRY_ASSIGN(const std::string text, read_file(file, 16_MiB));
  return text.rfind("[[cases]]", 0) == 0 || text.find("\n[[cases]]") != std::string::npos;
}

Result<CaseFile> read_cases(const std::filesystem::path& file) {
  CaseFile out;
  std::string unit = "GiB", model, job;
  std::deque<CaseKeys> cases;
  ConfigTable table;
  table.bind("source", &out.source, "Of the published numbers.");
  table.bind("unit", &unit, "Of the published numbers.").one_of({"GiB", "GB"});
  table.bind("model", &model, "Folder with config.json.");
  table.bind("job", &job, "Configuration of a training.");
  table.bind_list("cases", &cases, &bind_case, "Cases.");
  NEAP_TRY(table.load_file(file));
  if (model.empty() == job.empty())
    return Status(ErrorCode::kInvalidArgument,
                  format("{}: needs one of the keys model and job", file.string()));
  out.scale = unit == "GiB" ? Scale::kGib : Scale::kGb;
  const std::filesystem::path folder = file.parent_path();
  if (!model.empty()) out.model = folder / model;
  if (!job.empty()) out.job = folder / job;
  for (const CaseKeys& keys : cases) out.cases.push_back(case_of(keys));
  return out;
}

Status load_model(const std::filesystem::path& folder, const ModelBatch& batch,
                  const std::vector<std::string>& set, spec::Job& job) {
  std::int64_t length = batch.length;
  if (length == 0) {
    NEAP_TRY_ASSIGN(const auto shape, spec::Architecture::from_folder(folder));
    length = std::min<std::int64_t>(2048, shape.longest_sequence());
  }
  const std::int64_t response = length / 2;
  std::vector<std::string> overrides = {
      "task=sft",
      "device.kind=cuda",
      "actor_rollout_ref.model.path=" + std::filesystem::absolute(folder).string(),
      "data.use_dynamic_bsz=false",
      format("data.train_batch_size={}", batch.sequences * batch.micro_batches),
      format("data.micro_batch_size_per_gpu={}", batch.sequences),
      format("data.max_prompt_length={}", length - response),
      format("data.max_response_length={}", response)};
  overrides.insert(overrides.end(), set.begin(), set.end());
  return spec::Job::load({}, overrides, job);
}

Status load_case(const CaseFile& file, const Case& of, spec::Job& job) {
  if (!file.job.empty()) return spec::Job::load(file.job, of.set, job);
  ModelBatch batch = of.batch;
  if (batch.micro_batches == 0) batch.micro_batches = of.degrees.pipeline;
  return load_model(file.model, batch, of.set, job);
}

Status add_published(const CaseFile& file, const Case& of, Sheet& sheet) {
  const double unit = unit_of(file.scale);
  for (const PublishedTerm& term : of.published) {
    // Search the lines of a rank before those of the first model.
    Line* line = sheet.find("rank." + term.term);
    for (Section& section : sheet.sections) {
      if (line != nullptr) break;
      const auto found =
          std::find_if(section.lines.begin(), section.lines.end(),
                       [&](const Line& l) { return l.id.substr(l.id.find('.') + 1) == term.term; });
      if (found != section.lines.end()) line = &*found;
    }
    if (line == nullptr)
      return {ErrorCode::kInvalidArgument,
              format("\"{}\": the job has no term \"{}\"", of.name, term.term)};
    const double scale = line->quantity == Quantity::kBytes        ? unit
                         : line->quantity == Quantity::kParameters ? 1e9
                                                                   : 1;
    line->published = Published{term.value * scale, of.rounded_to * scale, term.why};
  }
  if (of.device > 0) {
    const double total = sheet.find("rank.total")->value / unit;
    sheet.remarks.push_back(
        format("Training by the formulas takes {:.4g} {} of a device of {:.4g}{}.", total,
               file.scale == Scale::kGib ? "GiB" : "GB", of.device,
               total > of.device ? ": it does not fit" : ""));
  }
  return {};
}

}  // namespace neap::formulas
