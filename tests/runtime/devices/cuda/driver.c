// An emulation of NVIDIA's driver for tests without a GPU: libcuda.so.1 with the part of the API that relaxpy uses.
//
// It is stricter than the driver. Work is put into streams and runs as late as possible: when somebody waits for it. So
// a missing wait, or a staging buffer that is used again too early, gives wrong numbers. Launches are refused unless
// their grid, block, shared memory and parameters are what the kernel and the device allow. Pointers are looked up when
// the work runs; a wrong one makes the context fail, as on a device, and so does a kernel that writes just beside memory.
// Freed memory is overwritten.
//
// A module is PTX, or a cubin. Parameters are read from PTX (`.param`) or from the cubin's `.nv.info` sections. Where the
// folder RELAXPY_CUDA_KERNELS has <SHA-256 of the code>.so, a launch of `k` calls its
//     void k__launch(const unsigned grid[3], const unsigned block[3], unsigned shared, const void *params)
// on the host; other kernels do nothing. `emulation_configure` (below) chooses the devices.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sha256.h"

enum {
  SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
  INVALID_IMAGE = 200, INVALID_CONTEXT = 201, UNSUPPORTED_PTX = 222, INVALID_PTX = 218, INVALID_HANDLE = 400,
  NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, OUT_OF_RESOURCES = 701, MISALIGNED_ADDRESS = 716,
  LAUNCH_FAILED = 719, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_ISOLATION = 905,
  CAPTURE_WRONG_THREAD = 908,
};
enum { MOST_DEVICES = 8, MOST_PARAMS = 128, MOST_WAITING = 1024, GUARD = 512, GUARDED = 0xAB };
typedef unsigned long long Address;

typedef struct { int failed; } Context;

typedef struct Memory {
  struct Memory *next;
  char *base;
  size_t size;
  Context *context;
  int pinned;
} Memory;

typedef struct { char name[256]; unsigned offset[MOST_PARAMS], size[MOST_PARAMS], pointer[MOST_PARAMS], count; } Signature;

typedef void (*Body)(const unsigned *, const unsigned *, unsigned, const void *);
typedef struct { Context *context; char *code; size_t length; void *library; int loaded; } Module;
typedef struct { Module *module; Signature signature; Body body; const char *(*failure)(void); int dynamic_shared, threads, static_shared; } Function;

struct Stream;
typedef struct { int kind; struct Stream *stream; unsigned long position; int captured, timed; Context *context; double when; } Event;

typedef enum { LAUNCH, LIBRARY, TO_DEVICE, TO_HOST, ON_DEVICE, WAIT, RECORD, FREE, GRAPH } Kind;
typedef struct Work {
  struct Work *next;
  Kind kind;
  Function *function;
  int (*library)(const void *);
  unsigned grid[3], block[3], shared;
  char *bytes;  // parameters, or the contents of pageable memory
  size_t size;
  Address target, source;
  struct Stream *other;
  unsigned long position;
  struct Graph *graph;
  Event *event;
} Work;

typedef struct Graph { Context *context; Work *first, *last; } Graph;

typedef struct Stream {
  struct Stream *next;
  int alive, is_default, mode;  // mode of capture; -1: none
  int invalidated;
  pthread_t capturer;
  Context *context;
  Work *first, *last;
  unsigned long put, done;
  Graph *recording;
} Stream;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
// Of a process that configures nothing: its memory is small, since measurements copy a part of it many times.
static struct { int devices, capability, pools, version; size_t memory; } config = {1, 80, 1, 13000, 1ul << 27};
static Context contexts[MOST_DEVICES];
static Memory *memories;
static Stream *streams;
static Stream *legacy[MOST_DEVICES];
static __thread Stream *own[MOST_DEVICES];
static int initialised, failure, skips_launches;
static double now;  // the device's clock in milliseconds: a launch takes 50 µs for each group of threads
static __thread Context *stack[16];
static __thread int depth;

// Control by the tests

#define CALL(...) __VA_ARGS__ { pthread_mutex_lock(&lock);
#define GIVE(value) do { int given = (value); pthread_mutex_unlock(&lock); return given; } while (0)

// As in a new process; what there was is gone.
void emulation_configure(int devices, int capability, size_t memory, int pools, int version) {
  config.devices = devices, config.capability = capability, config.memory = memory;
  config.pools = pools, config.version = version;
  initialised = failure = skips_launches = 0;
  memset(contexts, 0, sizeof contexts);
  memories = NULL;
  for (Stream *s = streams; s; s = s->next) s->alive = 0, s->first = s->last = NULL, s->done = s->put;
}
// The next work that runs fails with this error of the driver.
void emulation_fail(int code) { failure = code; }
// Launches return at once, for measurements.
void emulation_skip_launches(int skip) { skips_launches = skip; }
// Live bytes of device memory, or of pinned memory.
size_t emulation_memory(int pinned) {
  size_t sum = 0;
  for (Memory *m = memories; m; m = m->next) sum += m->pinned == pinned ? m->size : 0;
  return sum;
}
int emulation_streams(void) {
  int count = 0;
  for (Stream *s = streams; s; s = s->next) count += s->alive && !s->is_default;
  return count;
}

// State

static Context *current(void) { return depth ? stack[depth - 1] : NULL; }

static int entered(void) {  // what every call that needs a context checks first
  if (!initialised) return NOT_INITIALIZED;
  if (!current()) return INVALID_CONTEXT;
  return current()->failed;
}

static Stream *new_stream(void) {
  Stream *s = calloc(1, sizeof *s);
  s->context = current(), s->alive = 1, s->mode = -1, s->next = streams;
  return streams = s;
}

static Stream *stream_of(void *handle) {
  Context *context = current();
  if (!context) return NULL;
  if ((uintptr_t)handle <= 2) {  // 0 and 1: the default stream of all; 2: that of this thread
    Stream **found = (uintptr_t)handle == 2 ? &own[context - contexts] : &legacy[context - contexts];
    if (!*found || !(*found)->alive) *found = new_stream(), (*found)->is_default = 1;
    return *found;
  }
  for (Stream *s = streams; s; s = s->next)
    if (s == handle) return s->alive ? s : NULL;
  return NULL;
}

static Memory *memory_at(Address address, size_t size, int pinned) {
  for (Memory *m = memories; m; m = m->next)
    if (m->pinned == pinned && address >= (Address)m->base && address + size <= (Address)m->base + m->size) return m;
  return NULL;
}

static size_t used(Context *context) {
  size_t sum = 0;
  for (Memory *m = memories; m; m = m->next) sum += !m->pinned && m->context == context ? m->size : 0;
  return sum;
}

static int allocated(Address *found, size_t size, int pinned) {
  Context *context = current();
  if (!size) return INVALID_VALUE;
  if (!pinned && (size > config.memory || used(context) + size > config.memory)) return OUT_OF_MEMORY;
  Memory *made = calloc(1, sizeof *made);
  if (posix_memalign((void **)&made->base, GUARD, size + 2 * GUARD)) { free(made); return OUT_OF_MEMORY; }
  memset(made->base, GUARDED, size + 2 * GUARD);
  made->base += GUARD;
  memset(made->base, 0xCD, size);
  made->size = size, made->context = context, made->pinned = pinned, made->next = memories;
  memories = made;
  *found = (Address)made->base;
  return SUCCESS;
}

static int freed(Address address, int pinned) {
  for (Memory **m = &memories; *m; m = &(*m)->next)
    if ((Address)(*m)->base == address && (*m)->pinned == pinned) {
      Memory *gone = *m;
      *m = gone->next;
      memset(gone->base, 0xDD, gone->size);
      free(gone->base - GUARD), free(gone);
      return SUCCESS;
    }
  return INVALID_VALUE;
}

static int is_guarded(const char *bytes) {
  for (int i = 0; i < GUARD; i++)
    if (bytes[i] != (char)GUARDED) return 0;
  return 1;
}

// Whether a kernel has written beside memory, where the guards of all memory are.
static int has_strayed(void) {
  for (Memory *m = memories; m; m = m->next)
    if (!is_guarded(m->base - GUARD) || !is_guarded(m->base + m->size)) return 1;
  return 0;
}

// Streams run when somebody waits

static int run_until(Stream *, unsigned long);

static int run(Work *w) {
  if (failure) { int code = failure; failure = 0; return code; }
  switch (w->kind) {
    case LAUNCH: {
      Signature *s = &w->function->signature;
      for (unsigned i = 0; i < s->count; i++)
        if (s->pointer[i]) {
          Address at = *(Address *)(w->bytes + s->offset[i]);
          if (!memory_at(at, 0, 0)) return ILLEGAL_ADDRESS;
          if (at % 16) return MISALIGNED_ADDRESS;
        }
      now += 0.05 * w->grid[0] * w->grid[1] * w->grid[2];
      if (w->function->body) w->function->body(w->grid, w->block, w->shared, w->bytes);
      if (w->function->failure && w->function->failure()[0]) {
        fprintf(stderr, "%s: %s\n", w->function->signature.name, w->function->failure());
        return LAUNCH_FAILED;
      }
      if (w->function->body && has_strayed()) return ILLEGAL_ADDRESS;
      return SUCCESS;
    }
    case LIBRARY: {
      int code = w->library(w->bytes);
      return code ? code : has_strayed() ? ILLEGAL_ADDRESS : SUCCESS;
    }
    case TO_DEVICE:
      if (!memory_at(w->target, w->size, 0)) return ILLEGAL_ADDRESS;
      if (!w->bytes && !memory_at(w->source, w->size, 1)) return ILLEGAL_ADDRESS;
      memcpy((void *)w->target, w->bytes ? w->bytes : (void *)w->source, w->size);
      return SUCCESS;
    case TO_HOST:
      if (!memory_at(w->source, w->size, 0)) return ILLEGAL_ADDRESS;
      memcpy((void *)w->target, (void *)w->source, w->size);
      return SUCCESS;
    case ON_DEVICE:
      if (!memory_at(w->source, w->size, 0) || !memory_at(w->target, w->size, 0)) return ILLEGAL_ADDRESS;
      memmove((void *)w->target, (void *)w->source, w->size);
      return SUCCESS;
    case WAIT: return run_until(w->other, w->position);
    case RECORD: w->event->when = now; return SUCCESS;
    case FREE: return freed(w->target, 0) ? ILLEGAL_ADDRESS : SUCCESS;
    case GRAPH:
      for (Work *each = w->graph->first; each; each = each->next) {
        int code = run(each);
        if (code) return code;
      }
      return SUCCESS;
  }
  return INVALID_VALUE;
}

static int run_until(Stream *s, unsigned long position) {
  while (s->done < position && s->first) {
    Work *w = s->first;
    s->first = w->next;
    if (!s->first) s->last = NULL;
    s->done++;
    int code = s->context->failed ? s->context->failed : run(w);
    free(w->bytes), free(w);
    if (code) return s->context->failed = code;
  }
  return s->context->failed;
}

static int put(Stream *s, Work work) {
  Work *w = malloc(sizeof *w);
  *w = work;
  w->next = NULL;
  if (s->mode >= 0) {
    Graph *g = s->recording;
    if (g->last) g->last->next = w; else g->first = w;
    g->last = w;
    return SUCCESS;
  }
  if (s->last) s->last->next = w; else s->first = w;
  s->last = w;
  s->put++;
  return s->put - s->done > MOST_WAITING ? run_until(s, s->put - MOST_WAITING) : SUCCESS;
}

// What may not be called while a stream is recorded

static int unsafe(void) {
  for (Stream *s = streams; s; s = s->next)
    if (s->alive && (s->mode == 0 || (s->mode == 1 && pthread_equal(s->capturer, pthread_self())))) {
      s->invalidated = 1;
      return CAPTURE_UNSUPPORTED;
    }
  return SUCCESS;
}

static int recording(Stream *s) {  // and the recording is spoilt
  if (s->mode < 0) return SUCCESS;
  s->invalidated = 1;
  return CAPTURE_UNSUPPORTED;
}

#define NEED(test, code) do { if (!(test)) GIVE(code); } while (0)
#define PASS(call) do { int code_ = (call); if (code_) GIVE(code_); } while (0)
#define STREAM(name, handle)                                                             \
  PASS(entered());                                                                       \
  Stream *name = stream_of(handle);                                                      \
  NEED(name, INVALID_HANDLE);                                                            \
  NEED(name->context == current(), INVALID_HANDLE);                                      \
  NEED(!name->invalidated, CAPTURE_INVALIDATED)

// Devices and contexts

CALL(int cuInit(unsigned flags))
  NEED(!flags, INVALID_VALUE);
  NEED(config.devices, NO_DEVICE);
  initialised = 1;
  GIVE(SUCCESS);
}
int cuDriverGetVersion(int *version) { *version = config.version; return SUCCESS; }
int cuDeviceGetCount(int *count) { *count = config.devices; return initialised ? SUCCESS : NOT_INITIALIZED; }
int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return !initialised ? NOT_INITIALIZED : ordinal >= 0 && ordinal < config.devices ? SUCCESS : INVALID_DEVICE;
}
int cuDeviceGetName(char *name, int size, int device) {
  snprintf(name, size, "Emulated GPU %d", device);
  return device < config.devices ? SUCCESS : INVALID_DEVICE;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  *bytes = config.memory;
  return device < config.devices ? SUCCESS : INVALID_DEVICE;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (device >= config.devices) return INVALID_DEVICE;
  switch (attribute) {
    case 1: *value = 1024; break;                            // MAX_THREADS_PER_BLOCK
    case 2: case 3: *value = 1024; break;                    // MAX_BLOCK_DIM_X, Y
    case 4: *value = 64; break;                              // MAX_BLOCK_DIM_Z
    case 5: *value = 0x7fffffff; break;                      // MAX_GRID_DIM_X
    case 6: case 7: *value = 65535; break;                   // MAX_GRID_DIM_Y, Z
    case 8: *value = 49152; break;                           // MAX_SHARED_MEMORY_PER_BLOCK
    case 10: *value = 32; break;                             // WARP_SIZE
    case 12: *value = 65536; break;                          // MAX_REGISTERS_PER_BLOCK
    case 13: *value = 1410000; break;                        // CLOCK_RATE, kHz
    case 16: *value = 108; break;                            // MULTIPROCESSOR_COUNT
    case 36: *value = 1215000; break;                        // MEMORY_CLOCK_RATE, kHz
    case 37: *value = 5120; break;                           // GLOBAL_MEMORY_BUS_WIDTH, bits
    case 38: *value = 40 << 20; break;                       // L2_CACHE_SIZE
    case 75: *value = config.capability / 10; break;         // COMPUTE_CAPABILITY_MAJOR
    case 76: *value = config.capability % 10; break;
    case 97: *value = config.capability == 80 ? 166912 : 232448; break;  // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    case 115: *value = config.pools; break;                  // MEMORY_POOLS_SUPPORTED
    default: return INVALID_VALUE;
  }
  return SUCCESS;
}
CALL(int cuDevicePrimaryCtxRetain(Context **context, int device))
  NEED(initialised, NOT_INITIALIZED);
  NEED(device >= 0 && device < config.devices, INVALID_DEVICE);
  *context = &contexts[device];
  GIVE(SUCCESS);
}
int cuDevicePrimaryCtxRelease_v2(int device) { return device < config.devices ? SUCCESS : INVALID_DEVICE; }
int cuCtxGetCurrent(Context **context) { *context = current(); return initialised ? SUCCESS : NOT_INITIALIZED; }
int cuCtxSetCurrent(Context *context) {
  if (context && (context < contexts || context >= contexts + MOST_DEVICES)) return INVALID_CONTEXT;
  if (!depth) depth = 1;
  stack[depth - 1] = context;
  if (!context) depth--;
  return SUCCESS;
}
int cuCtxPushCurrent_v2(Context *context) {
  if (depth == 16) return INVALID_CONTEXT;
  stack[depth++] = context;
  return SUCCESS;
}
int cuCtxPopCurrent_v2(Context **context) {
  if (!depth) return INVALID_CONTEXT;
  *context = stack[--depth];
  return SUCCESS;
}
CALL(int cuCtxSynchronize(void))
  PASS(entered());
  for (Stream *s = streams; s; s = s->next)
    if (s->alive && s->context == current()) PASS(recording(s));
  for (Stream *s = streams; s; s = s->next)
    if (s->context == current()) PASS(run_until(s, s->put));
  GIVE(SUCCESS);
}
CALL(int cuMemGetInfo_v2(size_t *left, size_t *total))
  PASS(entered());
  *total = config.memory, *left = config.memory - used(current());
  GIVE(SUCCESS);
}

// Memory

CALL(int cuMemAlloc_v2(Address *found, size_t size))
  PASS(entered());
  PASS(unsafe());
  GIVE(allocated(found, size, 0));
}
CALL(int cuMemFree_v2(Address address))
  PASS(entered());
  PASS(unsafe());
  for (Stream *s = streams; s; s = s->next)  // it waits for all work
    if (s->context == current()) PASS(run_until(s, s->put));
  GIVE(freed(address, 0));
}
CALL(int cuMemAllocAsync(Address *found, size_t size, void *handle))
  STREAM(s, handle);
  NEED(config.pools, NOT_SUPPORTED);
  PASS(recording(s));  // the driver would make it a part of the graph
  GIVE(allocated(found, size, 0));
}
CALL(int cuMemFreeAsync(Address address, void *handle))
  STREAM(s, handle);
  PASS(recording(s));
  Memory *m = memory_at(address, 0, 0);
  NEED(m && (Address)m->base == address, INVALID_VALUE);
  GIVE(put(s, (Work){.kind = FREE, .target = address}));
}
CALL(int cuMemHostAlloc(void **found, size_t size, unsigned flags))
  (void)flags;
  PASS(entered());
  PASS(unsafe());
  GIVE(allocated((Address *)found, size, 1));
}
CALL(int cuMemFreeHost(void *address))
  PASS(entered());
  for (Stream *s = streams; s; s = s->next)
    if (s->context == current()) PASS(run_until(s, s->put));
  GIVE(freed((Address)address, 1));
}
CALL(int cuMemcpyHtoDAsync_v2(Address target, const void *source, size_t size, void *handle))
  STREAM(s, handle);
  NEED(memory_at(target, size, 0), INVALID_VALUE);
  Work w = {.kind = TO_DEVICE, .target = target, .source = (Address)source, .size = size};
  if (!memory_at((Address)source, size, 1)) {
    PASS(recording(s));
    w.bytes = memcpy(malloc(size), source, size);
  }
  GIVE(put(s, w));
}
CALL(int cuMemcpyDtoHAsync_v2(void *target, Address source, size_t size, void *handle))
  STREAM(s, handle);
  NEED(memory_at(source, size, 0), INVALID_VALUE);
  if (!memory_at((Address)target, size, 1)) PASS(recording(s));
  PASS(put(s, (Work){.kind = TO_HOST, .target = (Address)target, .source = source, .size = size}));
  GIVE(memory_at((Address)target, size, 1) ? SUCCESS : run_until(s, s->put));
}
CALL(int cuMemcpyDtoDAsync_v2(Address target, Address source, size_t size, void *handle))
  STREAM(s, handle);
  NEED(memory_at(target, size, 0) && memory_at(source, size, 0), INVALID_VALUE);
  GIVE(put(s, (Work){.kind = ON_DEVICE, .target = target, .source = source, .size = size}));
}

// Streams and events

CALL(int cuStreamCreate(Stream **made, unsigned flags))
  PASS(entered());
  NEED(flags <= 1, INVALID_VALUE);
  *made = new_stream();
  GIVE(SUCCESS);
}
CALL(int cuStreamDestroy_v2(void *handle))
  STREAM(s, handle);
  NEED(!s->is_default, INVALID_HANDLE);
  s->alive = 0;  // its work is done later
  GIVE(SUCCESS);
}
CALL(int cuStreamSynchronize(void *handle))
  STREAM(s, handle);
  PASS(recording(s));
  GIVE(run_until(s, s->put));
}
CALL(int cuStreamWaitEvent(void *handle, Event *event, unsigned flags))
  STREAM(s, handle);
  NEED(!flags && event, INVALID_VALUE);
  NEED(event->kind == 0xE7E, INVALID_HANDLE);
  if (!event->stream) GIVE(SUCCESS);
  NEED(s->mode < 0 && !event->captured, CAPTURE_ISOLATION);  // no test records several streams
  GIVE(put(s, (Work){.kind = WAIT, .other = event->stream, .position = event->position}));
}
CALL(int cuEventCreate(Event **made, unsigned flags))
  PASS(entered());
  NEED(flags <= 7, INVALID_VALUE);
  *made = calloc(1, sizeof **made);
  (*made)->kind = 0xE7E, (*made)->context = current(), (*made)->timed = !(flags & 2);
  GIVE(SUCCESS);
}
CALL(int cuEventDestroy_v2(Event *event))
  NEED(event && event->kind == 0xE7E, INVALID_HANDLE);
  event->kind = 0;  // its memory stays: work that waits may record it
  GIVE(SUCCESS);
}
CALL(int cuEventRecord(Event *event, void *handle))
  STREAM(s, handle);
  NEED(event && event->kind == 0xE7E && event->context == s->context, INVALID_HANDLE);
  event->captured = s->mode >= 0;
  PASS(put(s, (Work){.kind = RECORD, .event = event}));
  event->stream = s, event->position = s->put;
  GIVE(SUCCESS);
}
CALL(int cuCtxRecordEvent(Context *context, Event *event))
  PASS(entered());
  NEED(context == current() && event && event->kind == 0xE7E && event->context == context, INVALID_HANDLE);
  for (Stream *s = streams; s; s = s->next)
    if (s->alive && s->context == context) PASS(recording(s));
  Stream *all = new_stream();  // with nothing but waits for all others
  all->alive = 0;
  for (Stream *s = streams; s; s = s->next)
    if (s != all && s->context == context)
      PASS(put(all, (Work){.kind = WAIT, .other = s, .position = s->put}));
  event->captured = 0;
  PASS(put(all, (Work){.kind = RECORD, .event = event}));
  event->stream = all, event->position = all->put;
  GIVE(SUCCESS);
}
CALL(int cuEventSynchronize(Event *event))
  PASS(entered());
  NEED(event && event->kind == 0xE7E, INVALID_HANDLE);
  NEED(!event->captured, CAPTURE_UNSUPPORTED);
  GIVE(event->stream ? run_until(event->stream, event->position) : SUCCESS);
}

CALL(int cuEventElapsedTime(float *milliseconds, Event *first, Event *last))
  PASS(entered());
  NEED(first && last && first->kind == 0xE7E && last->kind == 0xE7E, INVALID_HANDLE);
  NEED(first->timed && last->timed && first->stream && last->stream, INVALID_HANDLE);
  NEED(last->stream->done >= last->position && first->stream->done >= first->position, NOT_READY);
  *milliseconds = last->when - first->when;
  GIVE(SUCCESS);
}

int cuEventQuery(Event *event) {
  return !event || event->kind != 0xE7E ? INVALID_HANDLE
       : event->stream && event->stream->done < event->position ? NOT_READY : SUCCESS;
}

// Modules

static int is_elf(const char *code) { return !memcmp(code, ELFMAG, SELFMAG); }

static size_t length_of(const char *code) {
  if (!is_elf(code)) return strlen(code);
  const Elf64_Ehdr *h = (const void *)code;
  const Elf64_Shdr *sections = (const void *)(code + h->e_shoff);
  size_t end = h->e_shoff + (size_t)h->e_shnum * h->e_shentsize, after;
  if (h->e_phnum && (after = h->e_phoff + (size_t)h->e_phnum * h->e_phentsize) > end) end = after;
  for (int i = 0; i < h->e_shnum; i++)
    if (sections[i].sh_type != SHT_NOBITS && (after = sections[i].sh_offset + sections[i].sh_size) > end) end = after;
  return end;
}

static unsigned aligned(unsigned offset, unsigned to) { return (offset + to - 1) / to * to; }

// `.visible .entry k( .param .u64 .ptr .align 1 k_param_0, .param .u32 k_param_1 )` of PTX
static int read_ptx(const char *code, const char *name, Function *f) {
  Signature *s = &f->signature;
  char entry[300];
  snprintf(entry, sizeof entry, ".entry %s(", name);
  const char *at = strstr(code, entry);
  if (!at) return NOT_FOUND;
  const char *end = strchr(at, ')'), *body = end ? strchr(end, '{') : NULL;
  if (!body) return INVALID_PTX;
  unsigned offset = 0;
  for (at = strstr(at, ".param"); at && at < end; at = strstr(at + 1, ".param")) {
    char type = 0, text[256];
    unsigned bits = 0;
    const char *comma = strpbrk(at, ",)");
    snprintf(text, sizeof text, "%.*s", (int)(comma - at), at);
    if (sscanf(text, ".param .%c%u", &type, &bits) != 2 || bits % 8 || s->count == MOST_PARAMS) return INVALID_PTX;
    unsigned i = s->count++;
    s->size[i] = bits / 8, s->offset[i] = offset = aligned(offset, bits / 8);
    s->pointer[i] = strstr(text, ".ptr") != NULL;
    offset += bits / 8;
  }
  const char *most = strstr(end, ".maxntid");
  if (most && most < body) f->threads = atoi(most + 8);
  return SUCCESS;
}

// The attributes of a kernel in the section .nv.info.<kernel> of a cubin
static int read_cubin(const char *code, const char *name, Function *f) {
  enum { MAX_THREADS = 0x05, PARAMETER = 0x17 };
  Signature *s = &f->signature;
  const Elf64_Ehdr *h = (const void *)code;
  const Elf64_Shdr *sections = (const void *)(code + h->e_shoff);
  const char *names = code + sections[h->e_shstrndx].sh_offset;
  char info[300], text[300], shared[300];
  snprintf(info, sizeof info, ".nv.info.%s", name);
  snprintf(text, sizeof text, ".text.%s", name);
  snprintf(shared, sizeof shared, ".nv.shared.%s", name);
  int found = 0;
  for (int i = 0; i < h->e_shnum; i++) {
    const char *section = names + sections[i].sh_name;
    found |= !strcmp(section, text);
    // From compute capability 9.0 on, the first KiB is the system's, and not counted.
    if (!strcmp(section, shared)) f->static_shared = sections[i].sh_size - (config.capability >= 90 ? 1024 : 0);
    if (strcmp(section, info)) continue;
    const unsigned char *at = (const void *)(code + sections[i].sh_offset), *end = at + sections[i].sh_size;
    while (at + 4 <= end) {  // format, attribute, and a value or the size of one
      unsigned format = at[0], attribute = at[1], size = format == 4 ? at[2] | at[3] << 8 : 0;
      const unsigned *words = (const void *)(at + 4);
      if (attribute == PARAMETER && size == 12) {
        unsigned ordinal = words[1] & 0xffff;
        if (ordinal >= MOST_PARAMS) return INVALID_IMAGE;
        s->offset[ordinal] = words[1] >> 16, s->size[ordinal] = words[2] >> 18;
        if (ordinal >= s->count) s->count = ordinal + 1;
      }
      if (attribute == MAX_THREADS && size == 12) f->threads = words[0] * words[1] * words[2];
      at += 4 + size;
    }
  }
  return found ? SUCCESS : NOT_FOUND;
}

// Whether the driver's compiler takes a version of PTX: that of CUDA 12.0 is 8.0, that of CUDA 13.0 is 9.0, and so on.
static int knows_ptx(const char *code) {
  unsigned major = 0, minor = 0;
  const char *version = strstr(code, ".version ");
  if (version) sscanf(version, ".version %u.%u", &major, &minor);
  unsigned latest = (config.version / 1000 - 4) * 10 + config.version % 1000 / 10;
  return major * 10 + minor <= latest;
}

CALL(int cuModuleLoadDataEx(Module **made, const char *code, unsigned count, const int *options, void **values))
  PASS(entered());
  PASS(unsafe());
  if (!is_elf(code) && !knows_ptx(code)) {
    for (unsigned i = 0; i < count; i++)
      if (options[i] == 5) strcpy(values[i], "ptxas application ptx input, line 1; fatal   : Unsupported .version");
    GIVE(UNSUPPORTED_PTX);
  }
  if (!is_elf(code) && !strstr(code, ".entry")) {
    for (unsigned i = 0; i < count; i++)
      if (options[i] == 5) strcpy(values[i], "ptxas application ptx input, line 1; fatal   : there is no kernel");  // JIT_ERROR_LOG_BUFFER
    GIVE(INVALID_PTX);
  }
  Module *m = calloc(1, sizeof *m);
  m->context = current(), m->loaded = 0x30D, m->length = length_of(code);
  m->code = memcpy(calloc(1, m->length + 1), code, m->length);
  const char *folder = getenv("RELAXPY_CUDA_KERNELS");
  if (folder) {
    char digest[65], path[4096];
    sha256(m->code, m->length, digest);
    snprintf(path, sizeof path, "%s/%s.so", folder, digest);
    m->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
  *made = m;
  GIVE(SUCCESS);
}
CALL(int cuModuleUnload(Module *m))
  PASS(entered());
  NEED(m && m->loaded == 0x30D, INVALID_HANDLE);
  for (Stream *s = streams; s; s = s->next)
    if (s->context == current()) PASS(run_until(s, s->put));
  m->loaded = 0;
  GIVE(SUCCESS);
}
CALL(int cuModuleGetFunction(Function **made, Module *m, const char *name))
  PASS(entered());
  NEED(m && m->loaded == 0x30D, INVALID_HANDLE);
  Function *f = calloc(1, sizeof *f);
  f->module = m, f->dynamic_shared = 49152, f->threads = 1024;
  snprintf(f->signature.name, sizeof f->signature.name, "%s", name);
  PASS((is_elf(m->code) ? read_cubin : read_ptx)(m->code, name, f));
  if (m->library) {
    char symbol[300];
    snprintf(symbol, sizeof symbol, "%s__launch", name);
    f->body = (Body)dlsym(m->library, symbol);
    f->failure = (const char *(*)(void))dlsym(m->library, "emulation_failure");  // of the last launch, or ""
    snprintf(symbol, sizeof symbol, "%s__pointers", name);  // a bit for each parameter
    uint64_t *pointers = dlsym(m->library, symbol);
    for (unsigned i = 0; pointers && i < f->signature.count && i < 64; i++) f->signature.pointer[i] = *pointers >> i & 1;
  }
  *made = f;
  GIVE(SUCCESS);
}
int cuFuncGetAttribute(int *value, int attribute, Function *f) {
  *value = attribute == 0 ? f->threads : attribute == 1 ? f->static_shared : attribute == 8 ? f->dynamic_shared : 0;
  return attribute > 16 ? INVALID_VALUE : SUCCESS;
}
int cuFuncSetAttribute(Function *f, int attribute, int value) {
  int most = config.capability == 80 ? 166912 : 232448;
  if (attribute != 8 || value < 0 || value + f->static_shared > most) return INVALID_VALUE;
  f->dynamic_shared = value;
  return SUCCESS;
}
int cuFuncGetParamInfo(Function *f, size_t index, size_t *offset, size_t *size) {
  if (index >= f->signature.count) return INVALID_VALUE;
  *offset = f->signature.offset[index], *size = f->signature.size[index];
  return SUCCESS;
}

CALL(int cuLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, void *handle, void **params, void **extra))
  if (skips_launches) GIVE(SUCCESS);
  STREAM(s, handle);
  NEED(f && f->module->loaded == 0x30D && f->module->context == s->context, INVALID_HANDLE);
  NEED(gx && gy && gz && bx && by && bz, INVALID_VALUE);
  NEED(gx <= 0x7fffffff && gy <= 65535 && gz <= 65535, INVALID_VALUE);
  NEED(bx <= 1024 && by <= 1024 && bz <= 64 && (uint64_t)bx * by * bz <= 1024, INVALID_VALUE);
  NEED((int)(bx * by * bz) <= f->threads, OUT_OF_RESOURCES);
  NEED((int)shared <= f->dynamic_shared, INVALID_VALUE);
  NEED(!params, NOT_SUPPORTED);  // relaxpy packs parameters
  const Signature *p = &f->signature;
  size_t size = 0, want = p->count ? p->offset[p->count - 1] + p->size[p->count - 1] : 0;
  char *bytes = NULL;
  for (int i = 0; extra && extra[i]; i += 2) {
    if ((uintptr_t)extra[i] == 1) bytes = extra[i + 1];
    else if ((uintptr_t)extra[i] == 2) size = *(size_t *)extra[i + 1];
    else GIVE(INVALID_VALUE);
  }
  NEED(size == want && size <= 4096, INVALID_VALUE);
  GIVE(put(s, (Work){.kind = LAUNCH, .function = f, .grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared = shared,
                     .bytes = size ? memcpy(malloc(size), bytes, size) : NULL, .size = size}));
}

// Emulated libraries: work of a stream that calls `body` with a copy of `bytes`, as a library's kernels do, and whether
// device memory is at an address, for such a body.

CALL(int emulation_library(void *handle, int (*body)(const void *), const void *bytes, size_t size))
  STREAM(s, handle);
  GIVE(put(s, (Work){.kind = LIBRARY, .library = body, .bytes = memcpy(malloc(size), bytes, size), .size = size}));
}
int emulation_holds(Address address, size_t size) { return memory_at(address, size, 0) != NULL; }

// Graphs

CALL(int cuStreamBeginCapture_v2(void *handle, int mode))
  STREAM(s, handle);
  NEED(mode >= 0 && mode <= 2, INVALID_VALUE);
  NEED((uintptr_t)handle > 2 && s->mode < 0, CAPTURE_UNSUPPORTED);
  s->mode = mode, s->capturer = pthread_self(), s->recording = calloc(1, sizeof(Graph));
  s->recording->context = s->context;
  GIVE(SUCCESS);
}
CALL(int cuStreamEndCapture(void *handle, Graph **graph))
  PASS(entered());
  Stream *s = stream_of(handle);
  NEED(s && s->context == current(), INVALID_HANDLE);
  NEED(s->mode >= 0, INVALID_VALUE);
  NEED(s->mode == 2 || pthread_equal(s->capturer, pthread_self()), CAPTURE_WRONG_THREAD);
  int spoilt = s->invalidated;
  s->mode = -1, s->invalidated = 0;
  *graph = spoilt ? NULL : s->recording;
  GIVE(spoilt ? CAPTURE_INVALIDATED : SUCCESS);
}
int cuGraphInstantiateWithFlags(Graph **made, Graph *graph, unsigned long long flags) {
  *made = graph;
  return graph && !flags ? SUCCESS : INVALID_VALUE;
}
CALL(int cuGraphLaunch(Graph *graph, void *handle))
  STREAM(s, handle);
  NEED(graph && graph->context == s->context, INVALID_VALUE);
  PASS(recording(s));
  GIVE(put(s, (Work){.kind = GRAPH, .graph = graph}));
}
int cuGraphDestroy(Graph *graph) { return graph ? SUCCESS : INVALID_VALUE; }
int cuGraphExecDestroy(Graph *graph) { return graph ? SUCCESS : INVALID_VALUE; }  // running ones end first

// Errors and symbols

static const struct { int code; const char *name, *text; } errors[] = {
  {SUCCESS, "CUDA_SUCCESS", "no error"},
  {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
  {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
  {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
  {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
  {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
  {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
  {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
  {INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
  {UNSUPPORTED_PTX, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
  {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
  {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
  {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
  {OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
  {MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
  {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
  {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
  {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
  {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
  {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
  {CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread"},
};
static int error_of(int code, const char **found, int text) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) { *found = text ? errors[i].text : errors[i].name; return SUCCESS; }
  *found = NULL;
  return INVALID_VALUE;
}
int cuGetErrorName(int code, const char **name) { return error_of(code, name, 0); }
int cuGetErrorString(int code, const char **text) { return error_of(code, text, 1); }

// NVRTC asks for the driver's private functions wherever it finds a driver.
int cuGetExportTable(const void **table, const void *name) {
  (void)name;
  *table = NULL;
  return NOT_FOUND;
}

// The newest version of a function that the emulation has.
int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
  (void)version, (void)flags;
  static const char *const suffixes[] = {"_v2", "WithFlags", ""};
  *found = NULL;
  for (size_t i = 0; i < 3 && !*found; i++) {
    char symbol[256];
    snprintf(symbol, sizeof symbol, "%s%s", name, suffixes[i]);
    Dl_info info, mine;
    void *there = dlsym(RTLD_DEFAULT, symbol);
    if (!there) there = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), symbol);
    if (there && dladdr(there, &info) && dladdr((void *)cuGetProcAddress_v2, &mine) && info.dli_fbase == mine.dli_fbase)
      *found = there;
  }
  if (status) *status = *found ? 0 : 1;
  return *found ? SUCCESS : NOT_FOUND;
}
