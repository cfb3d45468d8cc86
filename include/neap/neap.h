/* Neap's C interface: tagged regions of GPU memory. A region keeps its address while its memory is released and mapped
 * again. Implemented by libneap_hook.so, which can be linked, opened with dlopen, or preloaded with LD_PRELOAD. Preloading
 * also hooks cudaMalloc and related functions (docs/hook.md).
 *
 * Conventions
 *   Outcome    every function that can fail returns a neap_status; 0 is success. Outputs come last
 *              and are unchanged on failure. Out-of-memory is a normal outcome.
 *   Errors     neap_last_error() and neap_last_shortage() describe the calling thread's last failure;
 *              a success does not change them.
 *   Structs    begin with struct_size, the size of the struct in the caller's version. The NEAP_*_INIT
 *              macros set it. Fields that an older caller lacks have their default.
 *   Text       NUL-terminated UTF-8. A tag in an output stays valid for the life of the process. A new
 *              tag that is not UTF-8 is NEAP_INVALID_ARGUMENT.
 *   Sizes      bytes, uint64_t. Devices are ordinals as CUDA counts them; addresses are void*.
 *   Threads    every function from any thread, unless it says otherwise.
 *   Fork       a child of a process that has opened a device gets NEAP_UNSUPPORTED from every call
 *              that needs one; a child forked before that is not restricted.
 *   Exit       nothing runs on the GPU after exit() has begun; the driver frees memory with the process.
 *
 * A device is opened by the first call that needs it. NEAP_HOOK_DEVICE=host:SIZE uses a device made of
 * host memory instead, for tests and machines without a GPU.
 */
#ifndef NEAP_NEAP_H_
#define NEAP_NEAP_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* C's names, not C++'s: NOLINTBEGIN(readability-identifier-naming) */
#define NEAP_API __attribute__((visibility("default")))
#define NEAP_ABI_VERSION 1u
#define NEAP_NO_LIMIT UINT64_MAX

/* ---- outcome ------------------------------------------------------------------------------- */

typedef int32_t neap_status;
enum {
  NEAP_OK = 0,
  NEAP_INVALID_ARGUMENT = 1,
  NEAP_NOT_FOUND = 2,
  NEAP_ALREADY_EXISTS = 3,
  NEAP_OUT_OF_DEVICE_MEMORY = 4,
  NEAP_OUT_OF_HOST_MEMORY = 5,
  NEAP_BUSY = 6,
  NEAP_CORRUPT = 7,
  NEAP_DEVICE_LOST = 8,
  NEAP_DRIVER = 9,
  NEAP_UNSUPPORTED = 10,
  NEAP_IO = 11,
  NEAP_CANCELLED = 12,
  NEAP_TIMEOUT = 13,
  NEAP_DOES_NOT_FIT = 14,
  NEAP_INTERNAL = 15
};

/* Details of an out-of-memory failure. neap_last_holder lists the tags that hold the remaining
 * memory, largest first. */
typedef struct neap_shortage {
  size_t struct_size;
  uint64_t need;
  uint64_t free;
  uint64_t capacity;
  uint64_t holders;
} neap_shortage;
#define NEAP_SHORTAGE_INIT \
  { sizeof(neap_shortage), 0, 0, 0, 0 }

NEAP_API uint32_t neap_abi_version(void);                  /* NEAP_ABI_VERSION of the library */
NEAP_API const char* neap_version(void);                   /* "0.1.0" */
NEAP_API const char* neap_status_name(neap_status status); /* "out of device memory" */
/* Message of the calling thread's last failure, "" before the first. Valid until the thread's next
 * failure. */
NEAP_API const char* neap_last_error(void);
/* NEAP_NOT_FOUND unless the thread's last failure was out of device memory and has details. */
NEAP_API neap_status neap_last_shortage(neap_shortage* shortage);
NEAP_API neap_status neap_last_holder(uint64_t index, const char** tag, uint64_t* bytes);

/* ---- settings ------------------------------------------------------------------------------ */

typedef struct neap_options {
  size_t struct_size;
  uint64_t page_store_budget; /* maximum of pages kept for reuse; others go to the driver */
  uint64_t host_budget;       /* maximum of host memory for backups */
  int32_t keep_host_buffers;  /* 1: keep the backups' memory for the next pause */
  uint32_t touch_threads;     /* first touch of backup memory; 0: one per two cores, at most 8 */
  const char* disk_folder;    /* for NEAP_DISK; NULL or "": the system's temporary folder */
  uint64_t margin;            /* creating a region fails as out of memory if less would stay free */
} neap_options;
#define NEAP_OPTIONS_INIT \
  { sizeof(neap_options), NEAP_NO_LIMIT, NEAP_NO_LIMIT, 1, 0, NULL, 0 }

/* May be called at any time. Applies to moves that begin later, also on open devices. Existing
 * backups stay where they are until their region resumes. Without keep_host_buffers the buffers of
 * resident regions are freed now. A lower host_budget frees nothing. NEAP_BUSY, without any change,
 * if touch_threads differs from that of an open device. */
NEAP_API neap_status neap_configure(const neap_options* options);
/* The number of devices; 0 without a GPU. Does not open them. */
NEAP_API neap_status neap_device_count(int32_t* count);

/* ---- scopes: which allocations of the hooks become regions ----------------------------------- */

typedef int32_t neap_policy;
enum {
  NEAP_POLICY_UNCHANGED = -1, /* in neap_pause_options only */
  NEAP_DISCARD = 0,           /* contents are undefined after resume */
  NEAP_HOST = 1,              /* kept in host memory */
  NEAP_DISK = 2,              /* kept in a file */
  NEAP_ZERO = 3               /* reads as zeros after resume */
};

typedef struct neap_scope {
  size_t struct_size;
  const char* tag;
  neap_policy policy;
  int32_t enabled;     /* 0: allocations inside are forwarded, even if the outer scope is enabled */
  int32_t all_threads; /* 1: also for threads without a scope (autograd's) */
} neap_scope;
#define NEAP_SCOPE_INIT \
  { sizeof(neap_scope), "default", NEAP_DISCARD, 1, 0 }

/* Scopes nest; the innermost of the thread decides. */
NEAP_API neap_status neap_scope_enter(const neap_scope* scope);
/* Leaves the thread's innermost scope. NEAP_NOT_FOUND without a scope. */
NEAP_API neap_status neap_scope_exit(void);
/* The scope that applies to the calling thread; enabled is 0 outside of every scope. */
NEAP_API neap_status neap_scope_current(neap_scope* scope);

/* ---- regions ------------------------------------------------------------------------------- */

typedef int32_t neap_state;
enum { NEAP_RESIDENT = 0, NEAP_PAUSING = 1, NEAP_PAUSED = 2, NEAP_RESUMING = 3 };

typedef struct neap_region {
  size_t struct_size;
  const char* tag;
  void* address;
  uint64_t requested;
  uint64_t size;    /* requested, rounded up to the device's granularity */
  uint64_t mapped;  /* physically mapped now */
  uint64_t version; /* grows each time new pages are mapped */
  neap_state state;
  neap_policy policy;
  int32_t device;
  int32_t kept; /* 1: see neap_keep_resident */
} neap_region;
#define NEAP_REGION_INIT \
  { sizeof(neap_region), NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Makes a resident region. Ignores scopes. */
NEAP_API neap_status neap_region_create(int32_t device, const char* tag, uint64_t size,
                                        neap_policy policy, void** address);
/* Makes a paused region without memory. neap_resume maps pages. */
NEAP_API neap_status neap_region_create_paused(int32_t device, const char* tag, uint64_t size,
                                               neap_policy policy, void** address);
/* Makes a second region, with its own address and tag, over the pages of the region at `source`. */
NEAP_API neap_status neap_region_alias(const char* tag, const void* source, void** address);
/* Waits for the device's work, then frees the region that begins at `address`, paused or not. */
NEAP_API neap_status neap_region_destroy(void* address);
/* The region that contains `address`. */
NEAP_API neap_status neap_region_find(const void* address, neap_region* region);
/* Gives another GPU, `peer`, read and write access to every region on `device`: existing and later
 * ones, also after a resume. NEAP_UNSUPPORTED if `peer` cannot access that memory. When preloaded,
 * cudaDeviceEnablePeerAccess does the same. Cannot be undone. */
NEAP_API neap_status neap_grant_peer(int32_t device, int32_t peer);
/* Fills at most `capacity` structs (set struct_size in the first) and sets *count to the number of
 * regions. tag NULL: all regions. */
NEAP_API neap_status neap_regions(const char* tag, neap_region* regions, size_t capacity,
                                  size_t* count);

/* ---- moves: all regions of some tags, on every open device ----------------------------------- */
/* An empty list (count 0) means every tag; unknown tags are ignored. A failing call leaves every
 * device as it was. */

enum { NEAP_FENCE_DEVICE = 0, NEAP_FENCE_STREAMS = 1, NEAP_FENCE_NONE = 2 };

typedef struct neap_pause_options {
  size_t struct_size;
  neap_policy policy;   /* overrides the tags' own policy, now and later */
  int32_t fence;        /* what to wait for before anything is unmapped */
  void* const* streams; /* CUstream values, for NEAP_FENCE_STREAMS */
  size_t stream_count;
  int32_t release_pages; /* 1: releases pages to the driver, for other processes */
  int32_t unchanged;     /* 1: not written since the last backup, which is reused */
} neap_pause_options;
#define NEAP_PAUSE_OPTIONS_INIT \
  { sizeof(neap_pause_options), NEAP_POLICY_UNCHANGED, NEAP_FENCE_DEVICE, NULL, 0, 0, 0 }

typedef struct neap_resume_options {
  size_t struct_size;
  uint64_t wait_ms; /* how long to wait for another process to free memory */
} neap_resume_options;
#define NEAP_RESUME_OPTIONS_INIT \
  { sizeof(neap_resume_options), 0 }

typedef struct neap_move {
  size_t struct_size;
  uint64_t bytes;  /* bytes that left or entered the device */
  uint64_t copied; /* part of bytes copied to or from the host or a disk */
  uint64_t regions;
  double seconds;
} neap_move;
#define NEAP_MOVE_INIT \
  { sizeof(neap_move), 0, 0, 0, 0.0 }

/* options and move may be NULL. Pausing a paused tag and resuming a resident one do nothing. */
NEAP_API neap_status neap_pause(const char* const* tags, size_t count,
                                const neap_pause_options* options, neap_move* move);
NEAP_API neap_status neap_resume(const char* const* tags, size_t count,
                                 const neap_resume_options* options, neap_move* move);
/* Pauses `out` while it resumes `in`, which reuses the pages of `out`. */
NEAP_API neap_status neap_exchange(const char* const* out, size_t out_count, const char* const* in,
                                   size_t in_count, const neap_pause_options* options,
                                   neap_move* move);
/* neap_shrink releases and neap_grow restores the memory of [offset, offset+size) of one region. */
NEAP_API neap_status neap_shrink(void* address, uint64_t offset, uint64_t size, neap_move* move);
NEAP_API neap_status neap_grow(void* address, uint64_t offset, uint64_t size, neap_move* move);
/* keep 1: pauses and exchanges leave the region of `address` mapped. keep 0: they no longer do. For
 * memory whose pages others use, such as buffers that NCCL registered in a captured CUDA graph.
 * Sets *bytes to the memory that stays: whole pages, including small regions that share them.
 * NEAP_BUSY unless the whole region is resident. */
NEAP_API neap_status neap_keep_resident(const void* address, int32_t keep, uint64_t* bytes);
/* Allocates and pins the host memory of the tags' next pause in advance. */
NEAP_API neap_status neap_prepare(const char* const* tags, size_t count);
/* Releases kept pages of `device` (-1: all) to the driver until each holds at most `keep`. */
NEAP_API neap_status neap_release_store(int32_t device, uint64_t keep, uint64_t* released);
/* The host copy of [address, address+size). NEAP_NOT_FOUND without one. Valid until the region resumes
 * (longer with keep_host_buffers) or is destroyed. */
NEAP_API neap_status neap_host_copy(const void* address, uint64_t size, const void** host);

/* ---- callbacks -------------------------------------------------------------------------------- */

/* Returns 0 to continue. Any other value from before_unmap stops the pause and restores the former
 * state. Called without locks on the thread that pauses or resumes, or on a thread of Neap if
 * several devices are open. It must not throw. */
typedef int32_t (*neap_callback)(const neap_region* region, void* user);
/* For code that registered addresses elsewhere (NCCL, RDMA, IPC). tag NULL: every region. Either
 * function may be NULL. Also applies to devices opened later. */
NEAP_API neap_status neap_add_callbacks(const char* tag, neap_callback before_unmap,
                                        neap_callback after_map, void* user, uint64_t* id);
/* Waits for running calls in other threads; afterwards no call runs or will run. Does not wait inside a
 * callback. */
NEAP_API neap_status neap_remove_callbacks(uint64_t id);

/* ---- sharing between processes ---------------------------------------------------------------- */

typedef struct neap_page {
  int32_t descriptor; /* the holder closes it */
  int32_t reserved;
  uint64_t offset; /* from the region's address */
  uint64_t size;
  uint64_t lead; /* bytes of the first page before the region; small regions share pages */
} neap_page;

/* Descriptors of the pages of the resident region that begins at `address`. Sets *count to the
 * number of pages. If that exceeds `capacity`, NEAP_INVALID_ARGUMENT, and nothing is exported. */
NEAP_API neap_status neap_export(const void* address, neap_page* pages, size_t capacity,
                                 size_t* count);
/* Makes a region over pages that another process exported. Free it with neap_region_destroy. */
NEAP_API neap_status neap_import(int32_t device, const char* tag, const neap_page* pages,
                                 size_t count, void** address);

/* A protocol over a Unix socket for pages, ownership and revocation; docs/hand-over.md. */
typedef struct neap_exporter neap_exporter;
typedef struct neap_importer neap_importer;

/* Serves offers at `path` on a separate thread. The path must not exist, or be the socket of an
 * exporter that has died. NEAP_ALREADY_EXISTS if another exporter uses it. */
NEAP_API neap_status neap_exporter_open(const char* path, neap_exporter** exporter);
/* Lets importers map the region that begins at `address` under `name`. A pause of the region first
 * revokes it from every importer and waits at most `revoke_ms`. If an importer still maps it, the
 * pause fails with NEAP_BUSY and the former state is restored. */
NEAP_API neap_status neap_exporter_offer(neap_exporter* exporter, const char* name, void* address,
                                         uint64_t revoke_ms);
/* Withdraws an offer. Importers unmap it; the call returns when the last one has unmapped or died. */
NEAP_API neap_status neap_exporter_withdraw(neap_exporter* exporter, const char* name,
                                            uint64_t revoke_ms);
/* The number of importers that map `name`. */
NEAP_API neap_status neap_exporter_importers(neap_exporter* exporter, const char* name,
                                             uint64_t* importers);
/* Withdraws all offers (waiting `revoke_ms` in total) and closes the socket. Frees the handle even
 * on failure. */
NEAP_API neap_status neap_exporter_close(neap_exporter* exporter, uint64_t revoke_ms);

/* Called on the importer's own thread before a lent region is unmapped. It must return only when
 * the memory is no longer in use. `lost` is 1 if the exporter is gone; the region then stays mapped
 * until neap_importer_drop. */
typedef void (*neap_revoked)(const char* name, void* address, int32_t lost, void* user);
NEAP_API neap_status neap_importer_open(const char* path, neap_revoked revoked, void* user,
                                        neap_importer** importer);
/* Maps the region that the exporter offers under `name`, as a region of `tag` on `device`. Waits up
 * to `wait_ms` for the offer. *version is the exporter's, for a comparison after a revocation. */
NEAP_API neap_status neap_importer_take(neap_importer* importer, const char* name, int32_t device,
                                        const char* tag, uint64_t wait_ms, void** address,
                                        uint64_t* size, uint64_t* version);
/* Unmaps one lent region and tells the exporter. */
NEAP_API neap_status neap_importer_drop(neap_importer* importer, const char* name);
/* Drops all regions and frees the handle. */
NEAP_API neap_status neap_importer_close(neap_importer* importer);

/* ---- statistics ------------------------------------------------------------------------------ */

typedef struct neap_totals {
  size_t struct_size;
  uint64_t regions, virtual_bytes, mapped_bytes, host_bytes, disk_bytes;
  uint64_t page_store_bytes, physical_bytes, peak_physical_bytes, host_buffer_bytes;
  uint64_t driver_creates, driver_releases, store_hits;
  uint64_t pauses, resumes, failures, copied_to_host, copied_to_device;
  double pause_seconds, resume_seconds;
  /* Calls and memory that the hooks forwarded to the CUDA runtime. */
  uint64_t outside_calls, outside_failures, outside_blocks, outside_bytes, outside_peak_bytes;
} neap_totals;

/* Sums over every open device. totals->struct_size must be set. */
NEAP_API neap_status neap_stats(neap_totals* totals);
/* Statistics by device and tag as text. Writes at most `capacity` bytes, including a NUL at the
 * end. *length is the length of the text without the NUL. A length above capacity - 1 means that
 * the text was cut. text may be NULL when capacity is 0. */
NEAP_API neap_status neap_stats_json(char* text, size_t capacity, size_t* length);
NEAP_API neap_status neap_stats_prometheus(char* text, size_t capacity, size_t* length);

/* ---- traces ---------------------------------------------------------------------------------- */

/* Records allocations and moves to a file of Neap's trace format, which `neap report` draws. Only
 * one trace at a time: NEAP_BUSY while one runs. NEAP_TRACE=PATH starts one with the first
 * allocation. */
NEAP_API neap_status neap_trace_start(const char* path);
NEAP_API neap_status neap_trace_stop(void);
/* Marks in the trace; they do nothing without a trace. */
NEAP_API neap_status neap_phase_begin(const char* name);
NEAP_API neap_status neap_phase_end(const char* name);
NEAP_API neap_status neap_mark(const char* text);

/* ---- PyTorch's pluggable allocator ------------------------------------------------------------- */

/* For torch.cuda.memory.CUDAPluggableAllocator, inside a torch.cuda.MemPool. Makes a region of the
 * calling thread's scope, else of an all_threads scope, else of tag "default" with NEAP_DISCARD.
 * Null always means out of memory, so that PyTorch frees its cache and tries again. Any other
 * failure is thrown as std::runtime_error, which PyTorch passes on to Python. */
NEAP_API void* neap_torch_malloc(ssize_t size, int device, void* stream);
NEAP_API void neap_torch_free(void* address, ssize_t size, int device, void* stream);

/* NOLINTEND(readability-identifier-naming) */
#ifdef __cplusplus
}
#endif
#endif /* NEAP_NEAP_H_ */
