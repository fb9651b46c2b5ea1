// An emulation of NVIDIA's cuBLASLt for tests without a GPU: the functions that relaxpy calls, on the emulated driver.
//
// It is stricter than the library. Descriptions must be complete and fit together; addresses must be aligned as the
// choice of the algorithm was told; the workspace must be as large as the algorithm asks for, and is filled with NaN, so
// that a plan which puts something else there gives wrong numbers. Products are computed when the stream runs, in double
// precision, and rounded once.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15, ILLEGAL_ADDRESS = 700 };
enum { FLOAT32 = 0, FLOAT16 = 2, BFLOAT16 = 14, COMPUTE_32F = 68, MARK = 0xC0B1A5 };

typedef struct { int mark; } Handle;
typedef struct { int mark, dtype; uint64_t rows, columns; int64_t stride; } Layout;
typedef struct { int mark, transposed; unsigned epilogue; uint64_t bias; } Product;
typedef struct { int mark; uint64_t workspace; unsigned sums, alignment[4]; } Preference;
typedef struct { uint64_t data[8]; } Algorithm;  // mark, alignment, workspace, a digest of the sizes, that of the bias
typedef struct { Algorithm algorithm; size_t workspace; int status; float waves; int reserved[4]; } Heuristic;

typedef struct {
  uint64_t left, right, bias, residual, out, workspace;
  size_t room;
  int64_t rows, columns, depth;
  int dtype, transposed;
  unsigned epilogue;
} Call;

static int (*enqueue)(void *, int (*)(const void *), const void *, size_t);
static int (*holds)(uint64_t, size_t);
static int (*current)(void **);
static int calls, asked, live, none;

// Control by the tests: products that ran, algorithms that were chosen, live objects; and to have no algorithm.
int cublas_calls(void) { return calls; }
int cublas_asked(void) { return asked; }
int cublas_live(void) { return live; }
void cublas_has_none(int set) { none = set; }

const char *cublasLtGetStatusString(int status) {
  return status == INVALID_VALUE ? "an invalid value" : status == NOT_SUPPORTED ? "not supported" : "an error";
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

static void *made(size_t size) { live++; int *object = calloc(1, size); *object = MARK; return object; }
static int gone(int *object) {
  if (!object || *object != MARK) return INVALID_VALUE;
  *object = 0, live--;
  free(object);
  return SUCCESS;
}
#define NEED(test) do { if (!(test)) return INVALID_VALUE; } while (0)
#define IS(object) ((object) && (object)->mark == MARK)

int cublasLtCreate(Handle **handle) {
  if (!has_context()) return NOT_INITIALIZED;
  *handle = made(sizeof(Handle));
  return SUCCESS;
}
int cublasLtDestroy(Handle *handle) { return gone(&handle->mark); }
int cublasLtMatrixLayoutCreate(Layout **layout, int dtype, uint64_t rows, uint64_t columns, int64_t stride) {
  NEED(dtype == FLOAT32 || dtype == FLOAT16 || dtype == BFLOAT16);
  NEED(rows && columns && stride >= (int64_t)rows);
  Layout *l = *layout = made(sizeof(Layout));
  l->dtype = dtype, l->rows = rows, l->columns = columns, l->stride = stride;
  return SUCCESS;
}
int cublasLtMatrixLayoutDestroy(Layout *layout) { return gone(&layout->mark); }
int cublasLtMatmulDescCreate(Product **product, int compute, int scale) {
  NEED(compute == COMPUTE_32F && scale == FLOAT32);
  Product *p = *product = made(sizeof(Product));
  p->epilogue = 1;
  return SUCCESS;
}
int cublasLtMatmulDescDestroy(Product *product) { return gone(&product->mark); }
int cublasLtMatmulDescSetAttribute(Product *product, int key, const void *value, size_t size) {
  NEED(IS(product));
  switch (key) {
    case 3: NEED(size == 4); product->transposed = *(int *)value; return SUCCESS;
    case 7: NEED(size == 4); product->epilogue = *(unsigned *)value; return SUCCESS;
    case 8: NEED(size == 8); product->bias = *(uint64_t *)value; return SUCCESS;
  }
  return INVALID_VALUE;
}
int cublasLtMatmulPreferenceCreate(Preference **made_) {
  Preference *p = *made_ = made(sizeof(Preference));
  p->sums = 7;
  for (int i = 0; i < 4; i++) p->alignment[i] = 256;
  return SUCCESS;
}
int cublasLtMatmulPreferenceDestroy(Preference *preference) { return gone(&preference->mark); }
int cublasLtMatmulPreferenceSetAttribute(Preference *p, int key, const void *value, size_t size) {
  NEED(IS(p));
  if (key == 1 && size == 8) { p->workspace = *(uint64_t *)value; return SUCCESS; }
  if (key == 3 && size == 4) { p->sums = *(unsigned *)value; return SUCCESS; }
  if (key >= 5 && key <= 8 && size == 4) { p->alignment[key - 5] = *(unsigned *)value; return SUCCESS; }
  return INVALID_VALUE;
}

static uint64_t digest(const Product *p, const Layout *a, const Layout *b, const Layout *d) {
  uint64_t parts[] = {p->transposed, p->epilogue, a->dtype, a->rows, a->columns, a->stride, b->rows, b->columns,
                      b->stride, d->rows, d->columns, d->stride}, sum = 14695981039346656037ull;
  for (unsigned i = 0; i < sizeof parts / 8; i++) sum = (sum ^ parts[i]) * 1099511628211ull;
  return sum;
}
static int fits(const Product *p, const Layout *a, const Layout *b, const Layout *c, const Layout *d) {
  if (!IS(p) || !IS(a) || !IS(b) || c != d || !IS(d)) return 0;
  uint64_t rows = p->transposed ? a->columns : a->rows, depth = p->transposed ? a->rows : a->columns;
  return a->dtype == b->dtype && b->dtype == d->dtype && rows == d->rows && depth == b->rows && b->columns == d->columns;
}
static unsigned alignment_of(uint64_t address) { return address ? (unsigned)(address & -address) : 1u << 31; }

int cublasLtMatmulAlgoGetHeuristic(Handle *handle, Product *p, Layout *a, Layout *b, Layout *c, Layout *d,
                                   Preference *wanted, int count, Heuristic *found, int *number) {
  if (!IS(handle) || !has_context()) return NOT_INITIALIZED;
  NEED(fits(p, a, b, c, d) && IS(wanted) && count > 0);
  NEED(p->epilogue == 1 || !(p->epilogue & ~(4u | 2u | 32u)));
  NEED(!(p->epilogue & 4) == !p->bias);
  NEED(wanted->sums == 2);
  asked++, *number = 0;
  if (none) return NOT_SUPPORTED;
  memset(found, 0, sizeof *found);
  size_t room = d->rows * d->columns * 4;  // partial sums
  found->workspace = room < wanted->workspace ? room : wanted->workspace;
  found->algorithm = (Algorithm){{MARK, wanted->alignment[0], found->workspace, digest(p, a, b, d), alignment_of(p->bias)}};
  *number = 1;
  return SUCCESS;
}

static int width(int dtype) { return dtype == FLOAT32 ? 4 : 2; }
static double read_at(const Call *call, uint64_t base, int64_t index) {
  if (call->dtype == FLOAT32) return ((float *)base)[index];
  if (call->dtype == FLOAT16) return ((_Float16 *)base)[index];
  uint32_t bits = (uint32_t)((uint16_t *)base)[index] << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static void write_at(const Call *call, int64_t index, double value) {
  if (call->dtype == FLOAT32) { ((float *)call->out)[index] = value; return; }
  if (call->dtype == FLOAT16) { ((_Float16 *)call->out)[index] = value; return; }
  float narrow = value;
  uint32_t bits;
  memcpy(&bits, &narrow, 4);
  ((uint16_t *)call->out)[index] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static int run(const void *bytes) {
  const Call *c = bytes;
  int item = width(c->dtype);
  if (!holds(c->left, c->columns * c->depth * item) || !holds(c->right, c->rows * c->depth * item) ||
      !holds(c->out, c->rows * c->columns * item) || !holds(c->workspace, c->room) ||
      (c->bias && !holds(c->bias, c->rows * item)) ||
      (c->residual && !holds(c->residual, c->rows * c->columns * item)))
    return ILLEGAL_ADDRESS;
  memset((void *)c->workspace, 0xFF, c->room);
  for (int64_t column = 0; column < c->columns; column++)
    for (int64_t row = 0; row < c->rows; row++) {
      double sum = 0;
      for (int64_t k = 0; k < c->depth; k++)
        sum += read_at(c, c->right, c->transposed ? row * c->depth + k : k * c->rows + row) *
               read_at(c, c->left, column * c->depth + k);
      if (c->residual) sum += read_at(c, c->residual, column * c->rows + row);
      if (c->bias) sum += read_at(c, c->bias, row);
      if (c->epilogue & 2) sum = sum > 0 ? sum : 0;
      if (c->epilogue & 32) sum = sum / 2 * (1 + tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
      write_at(c, column * c->rows + row, sum);
    }
  calls++;
  return SUCCESS;
}

int cublasLtMatmul(Handle *handle, Product *p, const float *alpha, uint64_t A, Layout *a, uint64_t B, Layout *b,
                   const float *beta, uint64_t C, Layout *c, uint64_t D, Layout *d, const Algorithm *algorithm,
                   uint64_t workspace, size_t room, void *stream) {
  if (!IS(handle) || !has_context()) return NOT_INITIALIZED;
  NEED(fits(p, a, b, c, d) && *alpha == 1 && (*beta == 1 || (*beta == 0 && C == D)));
  const uint64_t *said = algorithm->data;
  NEED(said[0] == MARK && said[3] == digest(p, a, b, d));
  NEED(!(A % said[1]) && !(B % said[1]) && !(C % said[1]) && !(D % said[1]) && !(workspace % 256));
  NEED(room >= said[2] && alignment_of(p->bias) >= said[4] && !(p->epilogue & 4) == !p->bias);
  Call call = {B, A, p->bias, *beta ? C : 0, D, workspace, room, d->rows, d->columns, b->rows, d->dtype, p->transposed, p->epilogue};
  return enqueue(stream, run, &call, sizeof call) ? 13 : SUCCESS;
}
