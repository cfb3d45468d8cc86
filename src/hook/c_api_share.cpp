// neap.h: sharing pages between processes.
#include <unistd.h>

#include "hook/c_struct.h"
#include "hook/error.h"
#include "hook/hand_over.h"
#include "neap/neap.h"

using neap::Bytes;
using neap::ErrorCode;
using neap::Status;
using namespace neap::hook;  // NOLINT(google-build-using-namespace)
namespace arena = neap::arena;

struct neap_exporter {
  std::unique_ptr<HandOverOwner> exporter;
};
struct neap_importer {
  std::unique_ptr<HandOverGuest> importer;
};

namespace {

std::chrono::milliseconds milliseconds(uint64_t count) {
  return std::chrono::milliseconds(std::min<uint64_t>(count, 86'400'000));
}

Status check(const neap_exporter* exporter, const char* name) {
  NEAP_TRY(require(exporter != nullptr, "exporter is null"));
  return require(name != nullptr, "name is null");
}
Status check(const neap_importer* importer, const char* name) {
  NEAP_TRY(require(importer != nullptr, "importer is null"));
  return require(name != nullptr, "name is null");
}

}  // namespace

extern "C" {

neap_status neap_export(const void* address, neap_page* pages, size_t capacity, size_t* count) {
  return guarded([&]() -> Status {
    NEAP_TRY(require(count != nullptr, "count is null"));
    NEAP_TRY(require(pages != nullptr || capacity == 0, "pages is null"));
    NEAP_TRY_ASSIGN(const Place place, region_at(address));
    NEAP_TRY_ASSIGN(const auto exported, place.on.arena->export_pages(place.region.id));
    *count = exported.size();
    if (exported.size() > capacity) {
      for (const auto& page : exported) ::close(page.descriptor);
      return {ErrorCode::kInvalidArgument,
              neap::format("The region has {} pages, but the array holds {}", exported.size(),
                           capacity)};
    }
    for (size_t i = 0; i < exported.size(); ++i) {
      pages[i] = {exported[i].descriptor, 0, exported[i].offset.count(), exported[i].size.count(),
                  exported[i].lead.count()};
    }
    return {};
  });
}

neap_status neap_import(int32_t device, const char* tag, const neap_page* pages, size_t count,
                        void** address) {
  return guarded([&]() -> Status {
    NEAP_TRY(require(address != nullptr, "address is null"));
    NEAP_TRY(require_tag(tag, "A region needs a tag"));
    NEAP_TRY(require(pages != nullptr && count > 0, "An import needs at least one page"));
    std::vector<arena::ExportedPage> list;
    for (size_t i = 0; i < count; ++i) {
      list.push_back({pages[i].descriptor, Bytes(pages[i].offset), Bytes(pages[i].size),
                      Bytes(pages[i].lead)});
    }
    NEAP_TRY_ASSIGN(const OpenDevice on, Runtime::get().open(device));
    NEAP_TRY_ASSIGN(const auto region, on.arena->import_pages(tag, list));
    *address = pointer(region.address);
    return {};
  });
}

neap_status neap_exporter_open(const char* path, neap_exporter** exporter) {
  return guarded([&]() -> Status {
    NEAP_TRY(require(path != nullptr && exporter != nullptr, "path or exporter is null"));
    NEAP_TRY_ASSIGN(auto opened, HandOverOwner::open(path));
    *exporter = new neap_exporter{std::move(opened)};
    return {};
  });
}
neap_status neap_exporter_offer(neap_exporter* exporter, const char* name, void* address,
                                uint64_t revoke_ms) {
  return guarded([&]() -> Status {
    NEAP_TRY(check(exporter, name));
    return exporter->exporter->offer(name, address, milliseconds(revoke_ms));
  });
}
neap_status neap_exporter_withdraw(neap_exporter* exporter, const char* name, uint64_t revoke_ms) {
  return guarded([&]() -> Status {
    NEAP_TRY(check(exporter, name));
    return exporter->exporter->withdraw(name, milliseconds(revoke_ms));
  });
}
neap_status neap_exporter_importers(neap_exporter* exporter, const char* name,
                                    uint64_t* importers) {
  return guarded([&]() -> Status {
    NEAP_TRY(check(exporter, name));
    NEAP_TRY(require(importers != nullptr, "importers is null"));
    NEAP_TRY_ASSIGN(*importers, exporter->exporter->guests(name));
    return {};
  });
}
neap_status neap_exporter_close(neap_exporter* exporter, uint64_t revoke_ms) {
  return guarded([&]() -> Status {
    NEAP_TRY(require(exporter != nullptr, "exporter is null"));
    Status outcome = exporter->exporter->close(milliseconds(revoke_ms));
    delete exporter;
    return outcome;
  });
}

neap_status neap_importer_open(const char* path, neap_revoked revoked, void* user,
                               neap_importer** importer) {
  return guarded([&]() -> Status {
    NEAP_TRY(require(path != nullptr && importer != nullptr, "path or importer is null"));
    HandOverGuest::Revoked tell;
    if (revoked != nullptr) {
      tell = [revoked, user](const std::string& name, neap::device::Address at, bool lost) {
        revoked(name.c_str(), pointer(at), lost ? 1 : 0, user);
      };
    }
    NEAP_TRY_ASSIGN(auto opened, HandOverGuest::open(path, std::move(tell)));
    *importer = new neap_importer{std::move(opened)};
    return {};
  });
}
neap_status neap_importer_take(neap_importer* importer, const char* name, int32_t device,
                               const char* tag, uint64_t wait_ms, void** address, uint64_t* size,
                               uint64_t* version) {
  return guarded([&]() -> Status {
    NEAP_TRY(check(importer, name));
    NEAP_TRY(require_tag(tag, "A region needs a tag"));
    NEAP_TRY(require(address != nullptr, "address is null"));
    NEAP_TRY_ASSIGN(const Loan loan,
                    importer->importer->take(name, device, tag, milliseconds(wait_ms)));
    *address = pointer(loan.address);
    if (size != nullptr) *size = loan.size.count();
    if (version != nullptr) *version = loan.generation;
    return {};
  });
}
neap_status neap_importer_drop(neap_importer* importer, const char* name) {
  return guarded([&]() -> Status {
    NEAP_TRY(check(importer, name));
    return importer->importer->drop(name);
  });
}
neap_status neap_importer_close(neap_importer* importer) {
  return guarded([&]() -> Status {
    NEAP_TRY(require(importer != nullptr, "importer is null"));
    Status outcome = importer->importer->close();
    if (outcome.code() == ErrorCode::kBusy)
      return outcome;  // close() was called from its own callback, so the object is still open
    delete importer;
    return outcome;
  });
}

}  // extern "C"
