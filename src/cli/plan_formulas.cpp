#include "cli/plan_formulas.h"

#include <filesystem>

#include "base/format.h"
#include "base/log.h"
#include "cli/command.h"
#include "formulas/measured.h"
#include "plan/rates/planned_device.h"
#include "report/run_folder.h"
#include "report/run_memory.h"

namespace neap::cli {
namespace {

Result<plan::PlannedDevice> device_of(const spec::Job& job) {
  return plan::device_to_plan_for(job, {}, plan::driver_gpus());
}

// Records of a run of the job. Fails if the folder belongs to another job.
Result<formulas::RunRecords> records_of(const std::string& folder, const formulas::JobSizes& sizes,
                                        std::vector<std::string>& notes) {
  NEAP_TRY_ASSIGN(const report::RunMemory run, report::read_run_memory(folder));
  if (run.task != sizes.task)
    return Status(
        ErrorCode::kInvalidArgument,
        format("{} is a run of the task {}, and the job's is {}", folder, run.task, sizes.task));
  for (const formulas::ModelSizes& model : sizes.models) {
    const std::string prefix = model.role.name() + ".";
    const auto first = run.planned_tags.lower_bound(prefix);
    if (first == run.planned_tags.end() || !first->first.starts_with(prefix))
      return Status(ErrorCode::kInvalidArgument,
                    format("{} is a run without the job's {} model", folder, model.role.name()));
  }
  formulas::RunRecords out;
  out.tags_from = report::kTraceFile;
  out.temporaries_from = report::kPhasesFile;
  const auto copy = [](const report::RunMemory::ByName& from, formulas::RankMemory::ByName& to) {
    for (const auto& [name, bytes] : from) to.emplace(name, static_cast<double>(bytes.count()));
  };
  copy(run.tags, out.measured.tags);
  copy(run.temporaries, out.measured.temporaries);
  copy(run.planned_tags, out.planned.tags);
  copy(run.planned_temporaries, out.planned.temporaries);
  for (const std::string& note : run.notes) notes.push_back(format("{}: {}", folder, note));
  return out;
}

Status print(const Json& json, const std::string& text, bool as_json) {
  return write_output(as_json ? json_text(json, 2) + "\n" : text);
}

}  // namespace

void PlanFormulas::declare(CLI::App& app) {
  CLI::Option* flag = app.add_flag(
      "--formulas", asked_,
      "textbook formulas next to the plan's counts; CONFIG may also be a file of cases "
      "(docs/formulas.md)");
  for (const char* other : {"--capacity", "--fit", "--gpu", "--simulate"}) flag->excludes(other);
  const auto add = [&](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->needs(flag)->group("With --formulas");
  };
  const auto add_number = [&](const char* name, std::int64_t& value, const char* help) {
    add(name, value, help)->check(CLI::PositiveNumber)->type_name("N");
  };
  add_number("--batch", batch_, "sequences of a micro-batch, if CONFIG is a model; default: 1");
  add_number("--length", length_, "tokens of a sequence, if CONFIG is a model; default: 2048");
  add_number("--micro-batches", micro_batches_,
             "micro-batches of an update, if CONFIG is a model; default: one per stage");
  add_number("--tensor", degrees_.tensor, "tensor-parallel ranks");
  add_number("--pipeline", degrees_.pipeline, "pipeline stages");
  add_number("--data", degrees_.data,
             "data-parallel ranks; default: the job's ranks / (tensor x pipeline)");
  add("--zero", degrees_.zero, "stage of ZeRO")->check(CLI::Range(0, 3))->type_name("0..3");
  app.add_flag("--sequence-parallel", degrees_.sequence_parallel,
               "sequence parallelism, as in Megatron")
      ->needs(flag)
      ->group("With --formulas");
  CLI::Option* run =
      add("--run", run_,
          "also what a run of CONFIG measured, from its output folder or that of one rank, "
          "instead of the options above")
          ->type_name("FOLDER");
  for (const char* other : {"--batch", "--length", "--micro-batches", "--tensor", "--pipeline",
                            "--data", "--zero", "--sequence-parallel"})
    run->excludes(other);
  add("--unit", unit_, "unit of values; GB: 10^9 bytes")
      ->check(CLI::IsMember({"GiB", "GB"}))
      ->type_name("GiB|GB");
}

Status PlanFormulas::refuse_options(const std::string& why, bool degrees) const {
  const formulas::Degrees none{.data = 0};
  const bool divides = degrees_.tensor != none.tensor || degrees_.pipeline != none.pipeline ||
                       degrees_.data != none.data || degrees_.zero != none.zero ||
                       degrees_.sequence_parallel;
  if (batch_ == 0 && length_ == 0 && micro_batches_ == 0 && !(degrees && divides)) return {};
  return {ErrorCode::kInvalidArgument, why};
}

Status PlanFormulas::run(const std::string& path, const std::vector<std::string>& overrides,
                         bool json) const {
  if (path.empty())
    return {ErrorCode::kInvalidArgument,
            "neap plan --formulas needs a configuration file, a config.json or a file of cases"};
  const std::filesystem::path file = path;
  const auto refuse_run = [&](const char* what) -> Status {
    if (run_.empty()) return {};
    return {ErrorCode::kInvalidArgument,
            format("--run needs the configuration of the run; {} is {}", path, what)};
  };
  spec::Job job;
  if (std::filesystem::is_directory(file) || file.filename() == "config.json") {
    NEAP_TRY(refuse_run("a model"));
    const std::filesystem::path folder =
        std::filesystem::is_directory(file) ? file : file.parent_path();
    const formulas::ModelBatch batch{batch_ > 0 ? batch_ : 1, length_,
                                     micro_batches_ > 0 ? micro_batches_ : degrees_.pipeline};
    NEAP_TRY(formulas::load_model(folder.empty() ? "." : folder, batch, overrides, job));
  } else {
    NEAP_TRY_ASSIGN(const bool cases, formulas::has_cases(file));
    if (cases) {
      NEAP_TRY(refuse_run("a file of cases"));
      if (!overrides.empty())
        return {ErrorCode::kInvalidArgument,
                path + " is a file of cases: each has its own keys in `set`"};
      NEAP_TRY(refuse_options(path + " is a file of cases, which have sizes and degrees", true));
      return run_cases(path, json);
    }
    NEAP_TRY(
        refuse_options("--batch, --length and --micro-batches are for a config.json; the keys of " +
                           path + " have the sizes of its batches",
                       false));
    const auto open = run_.empty() ? spec::OpenDegrees::kNone : spec::OpenDegrees::kAuto;
    NEAP_TRY(spec::Job::load(file, overrides, job, open));
    if (job.parallel.automatic.any())
      return {ErrorCode::kInvalidArgument,
              "--run needs the degrees that the run had: give the keys of [parallel] that are "
              "\"auto\" as key.path=value"};
  }
  return run_job(job, path, json);
}

Status PlanFormulas::run_job(const spec::Job& job, const std::string& path, bool json) const {
  for (const std::string& warning : job.warnings) log::warn(warning);
  NEAP_TRY_ASSIGN(const plan::PlannedDevice device, device_of(job));
  NEAP_TRY_ASSIGN(const formulas::JobSizes sizes, formulas::read_sizes(job, device.choice.target));
  NEAP_TRY_ASSIGN(formulas::Sheet sheet,
                  run_.empty()
                      ? formulas::make_sheet(sizes, degrees_)
                      : formulas::make_sheet(sizes, formulas::degrees_of(job, job.main_model()),
                                             formulas::own_degrees_of(job)));
  if (!run_.empty()) {
    NEAP_TRY_ASSIGN(const formulas::RunRecords records, records_of(run_, sizes, sheet.remarks));
    formulas::add_measured(job, sizes, records, sheet);
  }
  const auto scale = unit_ == "GB" ? formulas::Scale::kGb : formulas::Scale::kGib;
  Json out = formulas::to_json(sheet);
  out["assumed"] = device.to_json(job)["assumed"];
  return print(
      out,
      format("Formulas for {} on {}\n", path, device.heading()) + formulas::to_text(sheet, scale),
      json);
}

Status PlanFormulas::run_cases(const std::string& path, bool json) const {
  NEAP_TRY_ASSIGN(const formulas::CaseFile file, formulas::read_cases(path));
  formulas::Scale scale = file.scale;
  if (!unit_.empty()) scale = unit_ == "GB" ? formulas::Scale::kGb : formulas::Scale::kGib;
  Json out = {{"source", file.source}, {"cases", Json::array()}};
  std::string text = format("{}\nPublished: {}\n", path, file.source);
  for (const formulas::Case& of : file.cases) {
    spec::Job job;
    NEAP_TRY(formulas::load_case(file, of, job));
    NEAP_TRY_ASSIGN(const plan::PlannedDevice device, device_of(job));
    NEAP_TRY_ASSIGN(const formulas::JobSizes sizes,
                    formulas::read_sizes(job, device.choice.target));
    NEAP_TRY_ASSIGN(formulas::Sheet sheet, formulas::make_sheet(sizes, of.degrees));
    NEAP_TRY(formulas::add_published(file, of, sheet));
    Json entry = formulas::to_json(sheet);
    entry["name"] = of.name;
    out["cases"].push_back(std::move(entry));
    text += format("\n== {} ==\n{}", of.name, formulas::to_text(sheet, scale));
  }
  return print(out, text, json);
}

}  // namespace neap::cli
