// An emulation of NVIDIA's cuDNN for tests without a GPU: the functions of its backend API that relaxpy calls, on the
// emulated driver, for graphs of one convolution.
//
// It is stricter than the library. Objects must have all attributes before they are finished, of the documented types
// and numbers, and fit together; only the graphs are known for which the library has kernels in its package. Of the six
// engines that it offers for a graph, the first ones must not be taken: one compiles, one is not supported, one needs
// too much memory, one adds in float16; and one uses tensor cores, which round float32. The workspace is filled with
// NaN. Convolutions are computed when the stream runs, in double precision, and rounded once.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_INITIALIZED = 1001, BAD_PARAM = 2000, NOT_SUPPORTED = 3000, FAILED = 5000 };
enum { ILLEGAL_ADDRESS = 700, MARK = 0xCD22 };
enum { FLOAT32 = 0, FLOAT16 = 2, BFLOAT16 = 9 };
enum { POINTWISE, CONVOLUTION, ENGINE, CONFIG, HEURISTICS, PLAN, CONVOLVE = 10, APPLY = 13, GRAPH = 15, PACK, TENSOR };
enum { COMPILED, UNSUPPORTED, LARGE, NARROW, TENSOR_CORES, PLAIN, ENGINES };

typedef struct { int64_t uid, align, extents[4], strides[4]; int dtype, is_virtual; } Tensor;
typedef struct { int64_t before[2], after[2], strides[2], dilation[2]; } Window;
typedef struct {
  Tensor x, w, y, bias, residual;
  Window window;
  int has_bias, has_residual, has_relu, known, layout;
} Graph;
typedef struct { int key, type; int64_t count; char data[512]; } Attribute;
typedef struct Object {
  int mark, kind, finished, attributes, engine, relu;
  Attribute attribute[16];
  Tensor tensor, b;      // of a tensor; of an operation what it reads, its result and a second operand
  Tensor from, to;
  Tensor weight;
  Window window;
  Graph graph;
  int64_t workspace;
  void *handle;
} Object;
typedef struct { int mark; void *stream; } Handle;

static int (*enqueue)(void *, int (*)(const void *), const void *, size_t);
static int (*holds)(uint64_t, size_t);
static int (*current)(void **);
static int calls, asked, live, none, last, fails;

// Control by the tests: convolutions that ran, graphs that were asked for, live objects, the engine of the last call;
// to have no engine, and to fail at the next execution.
int cudnn_calls(void) { return calls; }
int cudnn_asked(void) { return asked; }
int cudnn_live(void) { return live; }
int cudnn_uses_tensor_cores(void) { return last == TENSOR_CORES; }
void cudnn_has_none(int set) { none = set; }
void cudnn_fails(int set) { fails = set; }

size_t cudnnGetVersion(void) { return 90100; }
const char *cudnnGetErrorString(int status) {
  return status == BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM" : status == FAILED ? "CUDNN_STATUS_EXECUTION_FAILED" : "an error";
}

static int has_context(void) {
  if (!enqueue) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!driver) return 0;
    enqueue = dlsym(driver, "emulation_library"), holds = dlsym(driver, "emulation_holds");
    current = dlsym(driver, "cuCtxGetCurrent");
  }
  void *context = NULL;
  return enqueue && !current(&context) && context;
}
#define NEED(test) do { if (!(test)) return BAD_PARAM; } while (0)

int cudnnCreate(Handle **handle) {
  if (!has_context()) return NOT_INITIALIZED;
  *handle = calloc(1, sizeof(Handle)), (*handle)->mark = MARK, live++;
  return SUCCESS;
}
int cudnnDestroy(Handle *handle) {
  NEED(handle && handle->mark == MARK);
  handle->mark = 0, live--;
  free(handle);
  return SUCCESS;
}
int cudnnSetStream(Handle *handle, void *stream) {
  NEED(handle && handle->mark == MARK && stream);
  handle->stream = stream;
  return SUCCESS;
}
int cudnnBackendCreateDescriptor(int kind, Object **made) {
  Object *o = *made = calloc(1, sizeof(Object));
  o->mark = MARK, o->kind = kind, live++;
  return SUCCESS;
}
int cudnnBackendDestroyDescriptor(Object *o) {
  NEED(o && o->mark == MARK);
  memset(o, 0, sizeof *o), live--;
  free(o);
  return SUCCESS;
}

static int width(int type) {
  return type == 2 ? 1 : type == 1 || type == 4 || type == 7 || type == 8 || type == 11 || type == 14 || type == 19 ? 4 : 8;
}
int cudnnBackendSetAttribute(Object *o, int key, int type, int64_t count, const void *values) {
  NEED(o && o->mark == MARK && !o->finished && values && count > 0 && count * width(type) <= 512);
  NEED(o->attributes < 16);
  for (int i = 0; i < o->attributes; i++) NEED(o->attribute[i].key != key);
  Attribute *a = &o->attribute[o->attributes++];
  a->key = key, a->type = type, a->count = count;
  memcpy(a->data, values, count * width(type));
  return SUCCESS;
}

static const void *given(const Object *o, int key, int type, int64_t count) {
  for (int i = 0; i < o->attributes; i++) {
    const Attribute *a = &o->attribute[i];
    if (a->key == key) return a->type == type && a->count == count ? a->data : NULL;
  }
  return NULL;
}
static const Object *object(const Object *o, int key, int kind) {
  const void *at = given(o, key, 15, 1);
  const Object *found = at ? *(Object *const *)at : NULL;
  return found && found->mark == MARK && found->finished && found->kind == kind ? found : NULL;
}
#define INT(name, key, type) const int *name = given(o, key, type, 1); NEED(name)
#define LONGS(name, key, count) const int64_t *name = given(o, key, 3, count); NEED(name)
#define OBJECT(name, key, kind) const Object *name = object(o, key, kind); NEED(name)
#define HANDLE(name, key) Handle *name = NULL; { const void *at = given(o, key, 0, 1); NEED(at); name = *(Handle *const *)at; \
  NEED(name && name->mark == MARK && has_context()); }

static int layout_of(const Tensor *t) {  // 1: NCHW, 2: NHWC, 3: either; 0: gaps
  const int64_t *e = t->extents, *s = t->strides;
  int first = s[3] == 1 && s[2] == e[3] && s[1] == e[3] * e[2] && s[0] == e[3] * e[2] * e[1];
  int last = s[1] == 1 && s[3] == e[1] && s[2] == e[1] * e[3] && s[0] == e[1] * e[3] * e[2];
  return first | last << 1;
}
static int same_extents(const Tensor *a, const Tensor *b) { return !memcmp(a->extents, b->extents, sizeof a->extents); }

static int finish_graph(Object *o, const Object *const *operation, int count) {
  Graph *g = &o->graph;
  NEED(operation[0] && operation[0]->mark == MARK && operation[0]->finished && operation[0]->kind == CONVOLVE);
  g->x = operation[0]->from, g->w = operation[0]->weight, g->y = operation[0]->to, g->window = operation[0]->window;
  g->known = 1;
  int steps = 0;
  for (int i = 1; i < count; i++) {
    const Object *step = operation[i];
    NEED(step && step->mark == MARK && step->finished && step->kind == APPLY);
    NEED(g->y.is_virtual && step->from.uid == g->y.uid && !memcmp(&step->from, &g->y, sizeof(Tensor)));
    NEED(g->y.dtype == FLOAT32 && same_extents(&step->to, &g->y));
    int kind = step->relu ? 3 : same_extents(&step->b, &step->to) && !g->has_bias && i == 1 && count > 2 ? 1 : 2;
    if (kind <= steps) g->known = 0;
    if (kind == 1) g->residual = step->b, g->has_residual = 1;
    if (kind == 2) {
      int64_t bias[4] = {1, step->to.extents[1], 1, 1};
      NEED(!memcmp(bias, step->b.extents, sizeof bias) && !step->b.is_virtual);
      g->bias = step->b, g->has_bias = 1;
    }
    if (kind == 3) g->has_relu = 1;
    steps = kind, g->y = step->to;
  }
  NEED(!g->y.is_virtual && !g->x.is_virtual && !g->w.is_virtual);
  if (count > 1 && !g->has_bias) g->known = 0;  // is compiled by the library
  g->layout = layout_of(&g->x) & layout_of(&g->w) & layout_of(&g->y);
  if (g->has_residual) g->layout &= layout_of(&g->residual);
  if (g->has_bias) g->layout &= layout_of(&g->bias);
  const Tensor *used[] = {&g->x, &g->w, &g->y, &g->bias, &g->residual};
  for (int i = 0; i < 5; i++) {
    if (!used[i]->uid) continue;
    NEED(used[i]->dtype == g->x.dtype && !used[i]->is_virtual);
    for (int j = 0; j < i; j++) NEED(used[j]->uid != used[i]->uid);
  }
  return SUCCESS;
}

int cudnnBackendFinalize(Object *o) {
  NEED(o && o->mark == MARK && !o->finished);
  switch (o->kind) {
    case TENSOR: {
      LONGS(uid, 906, 1); LONGS(align, 900, 1); LONGS(extents, 902, 4); LONGS(strides, 903, 4);
      INT(dtype, 901, 1);
      const char *is_virtual = given(o, 907, 2, 1);
      NEED(is_virtual && *uid && *align > 0 && !(*align & (*align - 1)));
      NEED(*dtype == FLOAT32 || *dtype == FLOAT16 || *dtype == BFLOAT16);
      Tensor *t = &o->tensor;
      t->uid = *uid, t->align = *align, t->dtype = *dtype, t->is_virtual = *is_virtual;
      for (int i = 0; i < 4; i++) {
        NEED(extents[i] > 0 && strides[i] > 0);
        t->extents[i] = extents[i], t->strides[i] = strides[i];
      }
      NEED(layout_of(t));
      break;
    }
    case CONVOLUTION: {
      INT(sums, 100, 1); INT(mode, 101, 7);
      LONGS(axes, 106, 1); LONGS(dilation, 102, 2); LONGS(strides, 103, 2); LONGS(after, 104, 2); LONGS(before, 105, 2);
      NEED(*sums == FLOAT32 && *mode == 1 && *axes == 2);
      for (int i = 0; i < 2; i++) {
        NEED(dilation[i] > 0 && strides[i] > 0 && after[i] >= 0 && before[i] >= 0);
        Window *w = &o->window;
        w->dilation[i] = dilation[i], w->strides[i] = strides[i], w->after[i] = after[i], w->before[i] = before[i];
      }
      break;
    }
    case CONVOLVE: {
      OBJECT(how, 702, CONVOLUTION); OBJECT(w, 703, TENSOR); OBJECT(x, 704, TENSOR); OBJECT(y, 705, TENSOR);
      const float *alpha = given(o, 700, 4, 1), *beta = given(o, 701, 4, 1);
      NEED(alpha && beta && *alpha == 1 && *beta == 0);
      o->from = x->tensor, o->weight = w->tensor, o->to = y->tensor, o->window = how->window;
      NEED(x->tensor.extents[0] == y->tensor.extents[0] && w->tensor.extents[0] == y->tensor.extents[1]);
      NEED(x->tensor.extents[1] % w->tensor.extents[1] == 0);
      NEED(y->tensor.extents[1] % (x->tensor.extents[1] / w->tensor.extents[1]) == 0);
      for (int i = 0; i < 2; i++) {
        const Window *v = &how->window;
        int64_t padded = x->tensor.extents[2 + i] + v->before[i] + v->after[i];
        int64_t span = (w->tensor.extents[2 + i] - 1) * v->dilation[i] + 1;
        NEED(span <= padded && y->tensor.extents[2 + i] == (padded - span) / v->strides[i] + 1);
      }
      break;
    }
    case POINTWISE: {
      INT(mode, 0, 14); INT(precision, 1, 1);
      NEED(*precision == FLOAT32 && (*mode == 0 || *mode == 100));
      o->relu = *mode == 100;
      break;
    }
    case APPLY: {
      OBJECT(how, 750, POINTWISE); OBJECT(x, 751, TENSOR); OBJECT(y, 753, TENSOR);
      o->relu = how->relu, o->from = x->tensor, o->to = y->tensor;
      if (!o->relu) {
        OBJECT(b, 752, TENSOR);
        o->b = b->tensor;
      }
      break;
    }
    case GRAPH: {
      HANDLE(handle, 800);
      for (int i = 0; i < o->attributes; i++) {
        const Attribute *a = &o->attribute[i];
        if (a->key == 801 && a->type == 15 && a->count <= 4) {
          int status = finish_graph(o, (const Object *const *)a->data, a->count);
          if (status) return status;
          o->finished = 1;
        }
      }
      NEED(o->finished);
      break;
    }
    case HEURISTICS: {
      OBJECT(graph, 201, GRAPH); INT(mode, 200, 8);
      NEED(*mode == 3 || *mode == 2);
      asked++, o->graph = graph->graph, o->engine = *mode;
      break;
    }
    case PLAN: {
      HANDLE(handle, 400); OBJECT(config, 401, CONFIG);
      o->graph = config->graph, o->engine = config->engine, o->handle = handle;
      if (o->engine == UNSUPPORTED) return NOT_SUPPORTED + 1;
      const int64_t *y = o->graph.y.extents;
      o->workspace = o->engine == LARGE ? (int64_t)1 << 40 : y[0] * y[1] * y[2] * y[3];
      break;
    }
    case PACK: break;
    default: return BAD_PARAM;
  }
  o->finished = 1;
  return SUCCESS;
}

int cudnnBackendGetAttribute(Object *o, int key, int type, int64_t most, int64_t *count, void *values) {
  NEED(o && o->mark == MARK && o->finished && count);
  if (o->kind == HEURISTICS && key == 202 && type == 15) {
    int is_known = o->graph.known && o->graph.layout && !none && o->engine == 3;
    *count = is_known ? ENGINES : 0;
    for (int i = 0; i < *count && i < most; i++) {
      Object *made = ((Object **)values)[i];
      NEED(made && made->mark == MARK && made->kind == CONFIG && !made->finished);
      made->engine = i, made->graph = o->graph, made->finished = 1;
    }
    return SUCCESS;
  }
  if (o->kind == CONFIG && key == 300 && type == 15) {
    *count = 1;
    if (!most) return SUCCESS;
    Object *made = *(Object **)values;
    NEED(made && made->mark == MARK && made->kind == ENGINE && !made->finished);
    made->engine = o->engine, made->finished = 1;
    return SUCCESS;
  }
  if (o->kind == ENGINE && key == 1303 && type == 11 && most > 1) {
    *count = o->engine == TENSOR_CORES || o->engine == NARROW;
    ((int *)values)[0] = o->engine == NARROW ? 2 : 0;
    return SUCCESS;
  }
  if (o->kind == ENGINE && key == 1305 && type == 19 && most > 1) {
    *count = o->engine == COMPILED, ((int *)values)[0] = 0;
    return SUCCESS;
  }
  NEED(o->kind == PLAN && key == 402 && type == 3 && most == 1);
  *count = 1, *(int64_t *)values = o->workspace;
  return SUCCESS;
}

typedef struct { Graph graph; uint64_t x, w, y, bias, residual, workspace; int64_t room; int engine; } Call;

static int bytes_of(int dtype) { return dtype == FLOAT32 ? 4 : 2; }
static int64_t size_of(const Tensor *t) {
  const int64_t *e = t->extents;
  return e[0] * e[1] * e[2] * e[3] * bytes_of(t->dtype);
}
static int64_t place(const Tensor *t, int64_t n, int64_t c, int64_t h, int64_t w) {
  return n * t->strides[0] + c * t->strides[1] + h * t->strides[2] + w * t->strides[3];
}
static double read_at(const Tensor *t, uint64_t base, int64_t at, int narrow) {
  uint32_t bits;
  float value;
  if (t->dtype == FLOAT16) return ((_Float16 *)base)[at];
  bits = t->dtype == FLOAT32 ? ((uint32_t *)base)[at] : (uint32_t)((uint16_t *)base)[at] << 16;
  if (narrow && t->dtype == FLOAT32) bits &= 0xffffe000;  // tensor cores
  memcpy(&value, &bits, 4);
  return value;
}
static void write_at(const Tensor *t, uint64_t base, int64_t at, double value) {
  float single = value;
  uint32_t bits;
  memcpy(&bits, &single, 4);
  if (t->dtype == FLOAT32) ((float *)base)[at] = single;
  else if (t->dtype == FLOAT16) ((_Float16 *)base)[at] = value;
  else ((uint16_t *)base)[at] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static int run(const void *bytes) {
  const Call *call = bytes;
  const Graph *g = &call->graph;
  const Window *v = &g->window;
  if (!holds(call->x, size_of(&g->x)) || !holds(call->w, size_of(&g->w)) || !holds(call->y, size_of(&g->y)) ||
      (g->has_bias && !holds(call->bias, size_of(&g->bias))) || !holds(call->workspace, call->room) ||
      (g->has_residual && !holds(call->residual, size_of(&g->residual))))
    return ILLEGAL_ADDRESS;
  memset((void *)call->workspace, 0xFF, call->room);
  const int64_t *y = g->y.extents, *w = g->w.extents, *x = g->x.extents;
  int64_t of_group = y[1] / (x[1] / w[1]);
  int narrow = call->engine == TENSOR_CORES;
  for (int64_t n = 0; n < y[0]; n++)
    for (int64_t k = 0; k < y[1]; k++)
      for (int64_t i = 0; i < y[2]; i++)
        for (int64_t j = 0; j < y[3]; j++) {
          double sum = 0;
          for (int64_t c = 0; c < w[1]; c++)
            for (int64_t r = 0; r < w[2]; r++)
              for (int64_t s = 0; s < w[3]; s++) {
                int64_t h = i * v->strides[0] + r * v->dilation[0] - v->before[0];
                int64_t l = j * v->strides[1] + s * v->dilation[1] - v->before[1];
                if (h < 0 || l < 0 || h >= x[2] || l >= x[3]) continue;
                sum += read_at(&g->x, call->x, place(&g->x, n, k / of_group * w[1] + c, h, l), narrow) *
                       read_at(&g->w, call->w, place(&g->w, k, c, r, s), narrow);
              }
          if (g->has_residual) sum += read_at(&g->residual, call->residual, place(&g->residual, n, k, i, j), 0);
          if (g->has_bias) sum += read_at(&g->bias, call->bias, k, 0);
          if (g->has_relu) sum = sum > 0 ? sum : 0;
          write_at(&g->y, call->y, place(&g->y, n, k, i, j), sum);
        }
  calls++, last = call->engine;
  return SUCCESS;
}

static uint64_t pointer(const int64_t *names, const uint64_t *pointers, int64_t count, const Tensor *t) {
  if (!t->uid) return 0;
  for (int64_t i = 0; i < count; i++)
    if (names[i] == t->uid) return pointers[i] % t->align ? 0 : pointers[i];
  return 0;
}
int cudnnBackendExecute(Handle *handle, Object *plan, Object *pack) {
  NEED(handle && handle->mark == MARK && handle->stream && has_context());
  NEED(plan && plan->mark == MARK && plan->finished && plan->kind == PLAN && plan->handle == handle);
  NEED(pack && pack->mark == MARK && pack->finished && pack->kind == PACK);
  NEED(plan->engine == TENSOR_CORES || plan->engine == PLAIN);
  if (fails) return FAILED;
  const Graph *g = &plan->graph;
  int64_t count = 3 + g->has_bias + g->has_residual;
  const int64_t *names = given(pack, 1000, 3, count);
  const uint64_t *pointers = given(pack, 1001, 6, count), *workspace = given(pack, 1003, 6, 1);
  NEED(names && pointers && workspace && !(*workspace % 256));
  Call call = {*g, pointer(names, pointers, count, &g->x), pointer(names, pointers, count, &g->w),
               pointer(names, pointers, count, &g->y), pointer(names, pointers, count, &g->bias),
               pointer(names, pointers, count, &g->residual), *workspace, plan->workspace, plan->engine};
  NEED(call.x && call.w && call.y && !call.bias == !g->has_bias && !call.residual == !g->has_residual);
  return enqueue(handle->stream, run, &call, sizeof call) ? FAILED : SUCCESS;
}
