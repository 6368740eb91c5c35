// A CUDA driver and a torch stream for tests of gpu_launch.c without a GPU: kernels are functions of the CPU, streams run
// at once, and a graph is a list of launches with copies of their arguments.
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST 64

typedef struct {
  void (*run)(void**);
  int n;
} Kernel;

typedef struct {
  const Kernel* kernel;
  uint64_t words[8];
} Node;

typedef struct {
  int n;
  Node nodes[MOST];
} Graph;

EXPORT int64_t launched, encoded, captured, replayed, dropped, refuse, user_captures, contexts_set;
EXPORT int64_t stream_number = 1, capture_number = 1, cleared, overlapping, moved, immovable, uncaptured;
static Graph graphs[MOST];
static int capturing;
static void* context = (void*)5;

static void add(void** a) {
  const float *x = *(float**)a[0], *y = *(float**)a[1];
  float* z = *(float**)a[2];
  for (long i = 0; i < *(long*)a[3]; i++) z[i] = x[i] + y[i];
}

// Counts the calls that find the same counter in z[0]; the last argument says whether to put zero back.
static void count(void** a) {
  int32_t *t = *(int32_t**)a[0], *z = *(int32_t**)a[1];
  z[0] = (int32_t)((*(uint64_t*)a[0] >> 3) & 0x7fffffff);
  z[1] = t[0];
  t[0] = *(long*)a[2] ? 0 : t[0] + 1;
}

static void twice(void** a) {
  for (int i = 0; i < 100; i++) (*(float**)a[1])[i] = 2 * (*(float**)a[0])[i];
}

// A map in this file is the address that it is over.
static void copy(void** a) { memcpy(*(float**)a[1], *(float**)a[0], 400); }

// Complains about numbers below 0.
static void bounded(void** a) {
  copy(a);
  for (int i = 0; i < 100; i++)
    if ((*(float**)a[0])[i] < 0) **(int**)a[2] = 1;
}

EXPORT const Kernel kernel_add = {add, 4}, kernel_twice = {twice, 2}, kernel_copy = {copy, 2},
                    kernel_count = {count, 3}, kernel_bounded = {bounded, 3};

EXPORT int stream(int32_t device, void** out) {
  *out = (void*)7;
  return device != 0;
}

EXPORT int cuLaunchKernel(const Kernel* k, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void* to, void** arguments, void** extra) {
  if (refuse) return refuse;
  if (!gx || !gy || !gz || bx * by * bz > 1024 || shared > 232448 || extra || (to != (void*)7) != capturing) return 1;
  if (context != (void*)6) return 201;
  launched++;
  if (!capturing) {
    k->run(arguments);
    return 0;
  }
  Graph* g = &graphs[captured];
  g->nodes[g->n].kernel = k;
  for (int i = 0; i < k->n; i++) memcpy(&g->nodes[g->n].words[i], arguments[i], 8);
  g->n++;
  return 0;
}

typedef struct {
  int kind, unused, on, room[15];
} Attribute;

typedef struct {
  unsigned grid[3], block[3], shared;
  void* stream;
  const Attribute* attributes;
  unsigned count;
} Config;

EXPORT int cuLaunchKernelEx(const Config* c, const Kernel* k, void** arguments, void** extra) {
  if (c->count != 1 || c->attributes->kind != 6 || !c->attributes->on) return 1;
  overlapping++;
  return cuLaunchKernel(k, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, c->stream,
                        arguments, extra);
}

EXPORT int cuTensorMapEncodeTiled(void* map, int dtype, uint32_t rank, void* address, const uint64_t* dims,
                                  const uint64_t* strides, const uint32_t* box, const uint32_t* ones, int interleave,
                                  int swizzle, int promotion, int fill) {
  int right = dtype == 7 && rank == 2 && dims[0] == 4 && dims[1] == 25 && strides[0] == 16 && box[0] == 4 &&
              box[1] == 5 && ones[0] == 1 && ones[1] == 1 && !interleave && swizzle == 0 && promotion == 2 && !fill;
  encoded++;
  memset(map, 0, 128);
  memcpy(map, &address, 8);
  return right ? 0 : 1;
}

EXPORT int cuCtxGetCurrent(void** out) { return *out = context, 0; }
EXPORT int cuCtxSetCurrent(void* c) { return context = c, contexts_set++, 0; }
EXPORT int cuStreamIsCapturing(void* s, int* out) { return *out = s == (void*)7 && user_captures, 0; }
EXPORT int cuStreamBeginCapture_v2(void* s, int mode) {
  if (s == (void*)7 || mode != 2) return 1;
  graphs[captured].n = 0;
  return capturing = 1, 0;
}
EXPORT int cuStreamEndCapture(void* s, void** graph) {
  (void)s;
  capturing = 0;
  return *graph = &graphs[captured++], 0;
}
EXPORT int cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long flags) {
  return *exec = graph, flags != 0 || uncaptured;
}
EXPORT int cuGraphLaunch(Graph* g, void* s) {
  if (s != (void*)7) return 1;
  for (int i = 0; i < g->n; i++) {
    void* arguments[8];
    for (int j = 0; j < 8; j++) arguments[j] = &g->nodes[i].words[j];
    g->nodes[i].kernel->run(arguments);
  }
  return replayed++, 0;
}
typedef struct {
  const Kernel* kernel;
  unsigned grid[3], block[3], shared;
  void **arguments, **extra, *same, *context;
} Params;

EXPORT int cuGraphExecKernelNodeSetParams_v2(Graph* g, Node* node, const Params* p) {
  if (immovable || node < g->nodes || node >= g->nodes + g->n || p->kernel != node->kernel || p->extra || p->same ||
      p->context || p->grid[0] != 1 || p->block[0] != 128)
    return 1;
  for (int i = 0; i < p->kernel->n; i++) memcpy(&node->words[i], p->arguments[i], 8);
  return moved++, 0;
}
EXPORT int cuGraphExecDestroy(void* exec) { return dropped++, exec == 0; }
static int mode = 0;
EXPORT int cuThreadExchangeStreamCaptureMode(int* m) {
  int before = mode;
  mode = *m, *m = before;
  return 0;
}
EXPORT int cuStreamGetId(void* s, unsigned long long* out) {
  return *out = stream_number, s != (void*)7 || user_captures || mode != 2 ? 900 : 0;
}
EXPORT int cuStreamGetCaptureInfo_v2(void* s, int* status, unsigned long long* id, void** graph, const void*** from,
                                     size_t* n) {
  if (s == (void*)9 && capturing) {  // what comes next waits for the last launch
    static void* last;
    last = &graphs[captured].nodes[graphs[captured].n - 1];
    *graph = &graphs[captured], *from = (const void**)&last, *n = 1;
    return *status = 1, *id = 78, 0;
  }
  *status = user_captures != 0;
  *id = user_captures ? capture_number : 77;
  return s != (void*)7 || graph || from || n;
}
EXPORT int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t size, void* s) {
  if (mode) return 1;
  memset((void*)to, byte, size);
  return cleared++, s != (void*)7;
}
EXPORT int cuGraphDestroy(void* graph) { return graph == 0; }
