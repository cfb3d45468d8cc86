// neap.h: pause, resume, exchange, partial moves, host copies and callbacks.
#include "hook/c_struct.h"
#include "hook/error.h"
#include "hook/moves.h"
#include "neap/neap.h"

using neap::Bytes;
using neap::ErrorCode;
using neap::Status;
using namespace neap::hook;  // NOLINT(google-build-using-namespace)
namespace arena = neap::arena;
namespace device = neap::device;

namespace {

neap::Result<arena::PauseOptions> pause_options(const neap_pause_options* given) {
  neap_pause_options known = NEAP_PAUSE_OPTIONS_INIT;
  NEAP_TRY(read_struct(given, known, "neap_pause_options"));
  arena::PauseOptions options;
  if (known.policy != NEAP_POLICY_UNCHANGED) {
    NEAP_TRY_ASSIGN(options.policy, policy_from(known.policy));
  }
  options.release_pages = known.release_pages != 0;
  options.unchanged = known.unchanged != 0;
  switch (known.fence) {
    case NEAP_FENCE_DEVICE:
      break;
    case NEAP_FENCE_NONE:
      options.fence = arena::Fence::none();
      break;
    case NEAP_FENCE_STREAMS: {
      NEAP_TRY(require(known.streams != nullptr || known.stream_count == 0, "streams is null"));
      std::vector<device::StreamId> streams;
      for (size_t i = 0; i < known.stream_count; ++i) {
        streams.push_back(
            static_cast<device::StreamId>(reinterpret_cast<uint64_t>(known.streams[i])));
      }
      options.fence = arena::Fence::of(std::move(streams));
      break;
    }
    default:
      return Status(ErrorCode::kInvalidArgument,
                    neap::format("{} is not a NEAP_FENCE_* value", known.fence));
  }
  return options;
}

}  // namespace

extern "C" {

neap_status neap_pause(const char* const* tags, size_t count, const neap_pause_options* options,
                       neap_move* move) {
  return guarded([&]() -> Status {
    NEAP_TRY(check_struct(move, "neap_move"));
    NEAP_TRY_ASSIGN(const auto list, tags_from(tags, count));
    NEAP_TRY_ASSIGN(const auto known, pause_options(options));
    NEAP_TRY_ASSIGN(const auto report, pause_everywhere(list, known));
    write_struct(move, to_c(report));
    return {};
  });
}

neap_status neap_resume(const char* const* tags, size_t count, const neap_resume_options* options,
                        neap_move* move) {
  return guarded([&]() -> Status {
    NEAP_TRY(check_struct(move, "neap_move"));
    neap_resume_options known = NEAP_RESUME_OPTIONS_INIT;
    NEAP_TRY(read_struct(options, known, "neap_resume_options"));
    NEAP_TRY_ASSIGN(const auto list, tags_from(tags, count));
    arena::ResumeOptions wanted;
    // A day is effectively infinite and does not overflow the clock.
    wanted.wait = std::chrono::milliseconds(std::min<uint64_t>(known.wait_ms, 86'400'000));
    NEAP_TRY_ASSIGN(const auto report, resume_everywhere(list, wanted));
    write_struct(move, to_c(report));
    return {};
  });
}

neap_status neap_exchange(const char* const* out, size_t out_count, const char* const* in,
                          size_t in_count, const neap_pause_options* options, neap_move* move) {
  return guarded([&]() -> Status {
    NEAP_TRY(check_struct(move, "neap_move"));
    NEAP_TRY(require(out_count > 0 && in_count > 0, "An exchange needs tags on both sides"));
    NEAP_TRY_ASSIGN(const auto leaving, tags_from(out, out_count));
    NEAP_TRY_ASSIGN(const auto coming, tags_from(in, in_count));
    NEAP_TRY_ASSIGN(const auto known, pause_options(options));
    NEAP_TRY_ASSIGN(const auto report, exchange_everywhere(leaving, coming, known));
    write_struct(move, to_c(report));
    return {};
  });
}

neap_status neap_shrink(void* address, uint64_t offset, uint64_t size, neap_move* move) {
  return guarded([&]() -> Status {
    NEAP_TRY(check_struct(move, "neap_move"));
    NEAP_TRY_ASSIGN(const Place place, region_at(address));
    NEAP_TRY_ASSIGN(const auto report,
                    place.on.arena->shrink(place.region.id, Bytes(offset), Bytes(size)));
    write_struct(move, to_c(report));
    return {};
  });
}

neap_status neap_grow(void* address, uint64_t offset, uint64_t size, neap_move* move) {
  return guarded([&]() -> Status {
    NEAP_TRY(check_struct(move, "neap_move"));
    NEAP_TRY_ASSIGN(const Place place, region_at(address));
    NEAP_TRY_ASSIGN(const auto report,
                    place.on.arena->grow(place.region.id, Bytes(offset), Bytes(size)));
    write_struct(move, to_c(report));
    return {};
  });
}

neap_status neap_keep_resident(const void* address, int32_t keep, uint64_t* bytes) {
  return guarded([&]() -> Status {
    NEAP_TRY(require(bytes != nullptr, "bytes is null"));
    NEAP_TRY_ASSIGN(const Place place, Runtime::get().find(address));
    NEAP_TRY_ASSIGN(const Bytes stays, place.on.arena->keep_resident(place.region.id, keep != 0));
    *bytes = stays.count();
    return {};
  });
}

neap_status neap_prepare(const char* const* tags, size_t count) {
  return guarded([&]() -> Status {
    NEAP_TRY(Runtime::get().usable());
    NEAP_TRY_ASSIGN(const auto list, tags_from(tags, count));
    for (const OpenDevice& on : Runtime::get().devices()) NEAP_TRY(on.arena->prepare(list));
    return {};
  });
}

neap_status neap_release_store(int32_t ordinal, uint64_t keep, uint64_t* released) {
  return guarded([&]() -> Status {
    NEAP_TRY(Runtime::get().usable());
    uint64_t sum = 0;
    for (const OpenDevice& on : Runtime::get().devices()) {
      if (ordinal >= 0 && on.ordinal != ordinal) continue;
      NEAP_TRY_ASSIGN(const Bytes went, on.arena->release_store(Bytes(keep)));
      sum += went.count();
    }
    if (released != nullptr) *released = sum;
    return {};
  });
}

neap_status neap_host_copy(const void* address, uint64_t size, const void** host) {
  return guarded([&]() -> Status {
    NEAP_TRY(require(host != nullptr, "host is null"));
    NEAP_TRY(Runtime::get().usable());
    NEAP_TRY_ASSIGN(const Place place, Runtime::get().find(address));
    const uint64_t offset = reinterpret_cast<uint64_t>(address) - place.region.address;
    if (size > place.region.size.count() - offset) {
      return {ErrorCode::kInvalidArgument,
              neap::format("[{}, +{}) exceeds its region of tag \"{}\"", address, size,
                           place.region.tag)};
    }
    const void* copy = place.on.arena->host_copy(place.region.id);
    if (copy == nullptr) {
      return {ErrorCode::kNotFound, neap::format("The region of tag \"{}\" at {} has no host copy",
                                                 place.region.tag, pointer(place.region.address))};
    }
    *host = static_cast<const char*>(copy) + offset;
    return {};
  });
}

neap_status neap_add_callbacks(const char* tag, neap_callback before_unmap, neap_callback after_map,
                               void* user, uint64_t* id) {
  return guarded([&]() -> Status {
    NEAP_TRY(require(id != nullptr, "id is null"));
    NEAP_TRY(Runtime::get().usable());
    const auto wrap = [user](neap_callback callback, const char* name) {
      std::function<Status(const arena::RegionInfo&)> wrapped;
      if (callback == nullptr) return wrapped;
      wrapped = [callback, user, name](const arena::RegionInfo& region) -> Status {
        const auto place = Runtime::get().find(pointer(region.address));
        const neap_region known = to_c(region, place.ok() ? place->on.ordinal : 0);
        if (const int32_t result = callback(&known, user); result != 0) {
          return {ErrorCode::kCancelled, neap::format("A {} callback of tag \"{}\" returned {}",
                                                      name, region.tag, result)};
        }
        return {};
      };
      return wrapped;
    };
    *id = Runtime::get().add_callbacks(
        tag != nullptr ? tag : "",
        {wrap(before_unmap, "before_unmap"), wrap(after_map, "after_map")});
    return {};
  });
}
neap_status neap_remove_callbacks(uint64_t id) {
  return guarded([&] { return Runtime::get().remove_callbacks(id); });
}

}  // extern "C"
