#include "report/run_folder.h"

#include "base/format.h"

namespace neap::report {

namespace {

// Checks whether an object has a field of a type.
struct Fields {
  const Json& json;
  bool operator()(const char* key, bool (Json::*is)() const noexcept) const {
    return json.contains(key) && (json[key].*is)();
  }
  // Longer times than any run's make tables and charts unreadable.
  [[nodiscard]] bool seconds(const char* key) const {
    constexpr double kMost = 1e9;
    return (*this)(key, &Json::is_number) && json[key].get<double>() >= 0 &&
           json[key].get<double>() <= kMost;
  }
};

Result<MoveLine> move_of(const Json& json) {
  const Fields has{json};
  const bool right = json.is_object() && has("kind", &Json::is_string) &&
                     has("tag", &Json::is_string) && has("copied", &Json::is_number_unsigned) &&
                     has.seconds("copy_seconds") && has.seconds("exposed_seconds") &&
                     has("overlapped", &Json::is_boolean);
  if (!right)
    return Status(ErrorCode::kCorrupt,
                  "phase record: a move lacks \"kind\", \"tag\", \"copied\", \"copy_seconds\", "
                  "\"exposed_seconds\" or \"overlapped\", or its seconds are not 0 to 1e9");
  return MoveLine{json["kind"].get<std::string>(),
                  json["tag"].get<std::string>(),
                  Bytes(json["copied"].get<std::uint64_t>()),
                  json["copy_seconds"].get<double>(),
                  json["exposed_seconds"].get<double>(),
                  json["overlapped"].get<bool>()};
}

Result<StreamedLine> streamed_of(const Json& json) {
  const Fields has{json};
  const bool right = json.is_object() && has("tag", &Json::is_string) &&
                     has("what", &Json::is_string) && has("to_device", &Json::is_number_unsigned) &&
                     has("to_host", &Json::is_number_unsigned) && has.seconds("exposed_seconds") &&
                     (!json.contains("disk_seconds") || has.seconds("disk_seconds"));
  if (!right)
    return Status(ErrorCode::kCorrupt,
                  "phase record: an entry of \"streamed\" lacks \"tag\", \"what\", \"to_device\", "
                  "\"to_host\" or \"exposed_seconds\", or its seconds are not 0 to 1e9");
  const auto bytes = [&](const char* key) {
    return Bytes(has(key, &Json::is_number_unsigned) ? json[key].get<std::uint64_t>() : 0);
  };
  return StreamedLine{json["tag"].get<std::string>(),
                      json["what"].get<std::string>(),
                      Bytes(json["to_device"].get<std::uint64_t>()),
                      Bytes(json["to_host"].get<std::uint64_t>()),
                      json["exposed_seconds"].get<double>(),
                      bytes("disk_read"),
                      bytes("disk_written"),
                      json.contains("disk_seconds") ? json["disk_seconds"].get<double>() : 0};
}

}  // namespace

Json PhaseRecord::to_json() const {
  Json uses = Json::array();
  for (const StreamedLine& s : streamed) {
    uses.push_back({{"tag", s.tag},
                    {"what", s.what},
                    {"to_device", s.to_device.count()},
                    {"to_host", s.to_host.count()},
                    {"exposed_seconds", s.visible_seconds}});
    if ((s.disk_read + s.disk_written).is_zero()) continue;
    uses.back()["disk_read"] = s.disk_read.count();
    uses.back()["disk_written"] = s.disk_written.count();
    uses.back()["disk_seconds"] = s.disk_seconds;
  }
  Json lines = Json::array();
  for (const MoveLine& m : moves) {
    lines.push_back({{"kind", m.kind},
                     {"tag", m.tag},
                     {"copied", m.copied.count()},
                     {"copy_seconds", m.copy_seconds},
                     {"exposed_seconds", m.visible_seconds},
                     {"overlapped", m.behind}});
  }
  Json out = {{"phase", phase},
              {"persistent", persistent.count()},
              {"temporary_allocated", transient_allocated.count()},
              {"temporary_reserved", transient_reserved.count()},
              {"peak", peak.count()},
              {"fragmentation_at_peak", fragmentation_at_peak.count()},
              {"moved", moved.count()},
              {"seconds", seconds},
              {"move_seconds", move_seconds},
              {"moves", std::move(lines)},
              {"streamed", std::move(uses)},
              {"communication_bytes", peer_bytes.count()},
              {"communication_seconds", peer_seconds},
              {"communication_exposed_seconds", peer_visible_seconds},
              {"as_planned", as_planned}};
  if (planned) out["planned"] = planned->count();
  return out;
}

Result<PhaseRecord> PhaseRecord::from_json(const Json& json) {
  PhaseRecord record;
  Status failure;
  const auto field = [&](const char* key, bool right) {
    if (!right && failure.ok())
      failure = Status(ErrorCode::kCorrupt, std::string("phase record: \"") + key +
                                                "\" is missing or of the wrong type");
    return right;
  };
  const auto bytes = [&](const char* key, Bytes& into) {
    if (field(key, json.contains(key) && json[key].is_number_unsigned()))
      into = Bytes(json[key].get<std::uint64_t>());
  };
  const auto seconds = [&](const char* key, double& into) {
    if (Fields{json}.seconds(key)) {
      into = json[key].get<double>();
    } else if (failure.ok()) {
      failure = Status(ErrorCode::kCorrupt,
                       format("phase record: \"{}\" is missing or not from 0 to 1e9 s", key));
    }
  };
  if (!json.is_object()) return Status(ErrorCode::kCorrupt, "phase record: not an object");
  if (field("step", json.contains("step") && json["step"].is_number_unsigned()))
    record.step = json["step"].get<std::uint64_t>();
  if (field("phase", json.contains("phase") && json["phase"].is_string()))
    record.phase = json["phase"].get<std::string>();
  bytes("persistent", record.persistent);
  bytes("temporary_allocated", record.transient_allocated);
  bytes("temporary_reserved", record.transient_reserved);
  bytes("peak", record.peak);
  bytes("fragmentation_at_peak", record.fragmentation_at_peak);
  bytes("moved", record.moved);
  seconds("seconds", record.seconds);
  seconds("move_seconds", record.move_seconds);
  // Older versions lack these fields.
  if (json.contains("moves")) {
    field("moves", json["moves"].is_array());
    if (field("as_planned", json.contains("as_planned") && json["as_planned"].is_boolean()))
      record.as_planned = json["as_planned"].get<bool>();
    for (const Json& move : failure.ok() ? json["moves"] : Json::array()) {
      NEAP_TRY_ASSIGN(MoveLine line, move_of(move));
      record.moves.push_back(std::move(line));
    }
  }
  if (json.contains("streamed")) {
    field("streamed", json["streamed"].is_array());
    for (const Json& use : failure.ok() ? json["streamed"] : Json::array()) {
      NEAP_TRY_ASSIGN(StreamedLine line, streamed_of(use));
      record.streamed.push_back(std::move(line));
    }
  }
  if (json.contains("communication_bytes")) {
    bytes("communication_bytes", record.peer_bytes);
    seconds("communication_seconds", record.peer_seconds);
    seconds("communication_exposed_seconds", record.peer_visible_seconds);
  }
  if (json.contains("planned")) bytes("planned", record.planned.emplace());
  if (!failure.ok()) return failure;
  return record;
}

Result<PhaseLog> PhaseLog::open(const std::filesystem::path& folder,
                                std::optional<std::int64_t> resume_step) {
  NEAP_TRY_ASSIGN(StepLog log, StepLog::open(folder / kPhasesFile, resume_step));
  return PhaseLog(std::move(log));
}

Result<std::vector<PhaseRecord>> PhaseLog::read(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kPhasesFile;
  std::vector<PhaseRecord> records;
  Status failure;
  NEAP_TRY(StepLog::for_each(path, [&](const Json& row) {
    if (!failure.ok()) return;
    auto record = PhaseRecord::from_json(row);
    if (record.ok()) {
      records.push_back(std::move(record).value());
    } else {
      failure = Status(record.status())
                    .with_context("reading line " + std::to_string(records.size() + 1) + " of " +
                                  path.string());
    }
  }));
  if (!failure.ok()) return failure;
  return records;
}

}  // namespace neap::report
