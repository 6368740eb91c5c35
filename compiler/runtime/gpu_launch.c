// Enqueues the launches of a program on torch's current stream: an entry for launcher.c. It writes argument words only.
// `Plan`, laid out by gpu_native.py, has the addresses of all functions of CUDA and torch; callers hold the GIL.
#include <stdint.h>
#include <string.h>

typedef void* Handle;  // a driver handle: function, stream, graph, context

typedef struct {
  Handle function;
  uint32_t grid[3], block[3], shared, overlaps;
  void** arguments;
  const int64_t* buffers;  // numbers of the buffers that it accesses
  int64_t n_buffers;
} Launch;

typedef struct {  // CUlaunchAttribute
  int kind, unused;
  union {
    int on;
    char room[64];
  } value;
} Attribute;

typedef struct {  // CUlaunchConfig
  uint32_t grid[3], block[3], shared;
  Handle stream;
  const Attribute* attributes;
  uint32_t count;
} Config;

typedef struct {  // CUDA_KERNEL_NODE_PARAMS_v2
  Handle function;
  uint32_t grid[3], block[3], shared;
  void **arguments, **extra;
  Handle kernel, context;
} Node;

// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
static const Attribute OVERLAP = {6, 0, {1}};

typedef struct {  // a tensor map of a buffer; `over` is the address that it is encoded for
  int64_t buffer;
  void *over, *storage;
  int32_t dtype, rank, swizzle, promotion;
  uint64_t dims[5], strides[5];
  uint32_t box[5], steps[5];
} Map;

#define KEPT 8             // the most graphs
#define SIGHTS 3           // times that the same addresses are seen until a graph is captured
#define PAYS 8             // replays that make up for a capture; if a graph is evicted before, the sights needed double
#define LONGEST (1 << 20)  // up to this
#define RECENT 16          // sets of addresses whose sights are counted
#define SLOTS 64           // streams, and captures in streams, with zeros of their own

typedef struct {
  uint64_t digest;
  int64_t used;    // call number of the last use; 0: empty
  int64_t sights;  // once there is a graph, its replays
  Handle graph;
} Known;

typedef struct {
  uint64_t stream, capture;  // CUDA's unique numbers; during a capture, the stream's handle
} Slot;

typedef struct {
  int32_t status, device;  // CUDA's status of the last call, and its number of the device
  Handle context, side;    // side: a stream for captures
  int64_t n_launches, n_maps, n_buffers, graphs, calls;
  Launch* launches;
  Map* maps;
  uint64_t* table;      // addresses of the buffers; arguments of launches point here
  Known known[RECENT];  // at most KEPT of them have graphs
  uint64_t* addresses;  // RECENT times n_buffers
  // The last n_zeros buffers are zero before and after a run: together `zero_bytes`, once per slot.
  int64_t n_zeros, zero_bytes, taken;
  uint64_t zeros;
  Slot slots[SLOTS];
  int (*stream_of)(int32_t, Handle*);
  int (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**, void**);
  int (*encode)(void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*, int, int,
                int, int);
  int (*get_context)(Handle*);
  int (*set_context)(Handle);
  int (*is_capturing)(Handle, int*);
  int (*begin)(Handle, int);
  int (*end)(Handle, Handle*);
  int (*instantiate)(Handle*, Handle, unsigned long long);
  int (*replay)(Handle, Handle);
  int (*drop_exec)(Handle);
  int (*drop_graph)(Handle);
  int (*number_of)(Handle, unsigned long long*);
  int (*capture_of)(Handle, int*, unsigned long long*, Handle*, const Handle**, size_t*);
  int (*clear)(uint64_t, unsigned char, size_t, Handle);
  int (*exchange_mode)(int*);
  int (*launch_with)(const Config*, Handle, void**, void**);
  int (*set_node)(Handle, Handle, const Node*);
  volatile int* flag;  // null, or where kernels report invalid data
  int64_t wanted;      // sights of the same addresses before a capture; 0: SIGHTS
  // A graph for addresses without a graph of their own: its nodes are updated before a replay.
  Handle movable, captured;  // `captured` is the graph that it was instantiated from, which has the nodes
  Handle* nodes;             // by launch
  uint64_t* over;            // the addresses in its nodes
  int64_t strays;            // calls that would have used it before its capture; below 0: it failed
} Plan;

// The node of the launch captured last, on which the next one in the stream depends alone.
static int last_node(Plan* p, Handle stream, Handle* node) {
  int capturing = 0;
  unsigned long long capture = 0;
  Handle graph = 0;
  const Handle* waits = 0;
  size_t n = 0;
  int status = p->capture_of(stream, &capturing, &capture, &graph, &waits, &n);
  if (status || n != 1) return status ? status : 999;
  *node = waits[0];
  return 0;
}

// Enqueue the launches. With `nodes`, the stream is being captured, and they become the launches' nodes.
static int enqueue(Plan* p, Handle stream, Handle* nodes) {
  for (int64_t i = 0; i < p->n_launches; i++) {
    const Launch* l = &p->launches[i];
    int status;
    if (l->overlaps) {
      const Config c = {{l->grid[0], l->grid[1], l->grid[2]}, {l->block[0], l->block[1], l->block[2]}, l->shared, stream,
                        &OVERLAP, 1};
      status = p->launch_with(&c, l->function, l->arguments, 0);
    } else {
      status = p->launch(l->function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2],
                         l->shared, stream, l->arguments, 0);
    }
    if (!status && nodes) status = last_node(p, stream, &nodes[i]);
    if (status) return status;
  }
  return 0;
}

static int point_maps(Plan* p) {
  for (int64_t i = 0; i < p->n_maps; i++) {
    Map* m = &p->maps[i];
    void* address = (void*)p->table[m->buffer];
    if (address == m->over) continue;
    m->over = 0;
    int status = p->encode(m->storage, m->dtype, m->rank, address, m->dims, m->strides, m->box, m->steps, 0, m->swizzle,
                           m->promotion, 0);
    if (status) return status;
    m->over = address;
  }
  return 0;
}

// ---- zeros

// Concurrent runs must not share zeros. Runs in one stream are never concurrent, nor are calls captured in one stream,
// whichever stream the graph is launched into. Each slot was zero when allocated. If all are taken, the arena is used
// and cleared before each run.
static int take_zeros(Plan* p, Handle stream) {
  unsigned long long number = (uint64_t)stream, capture = 0;
  int capturing = 0, mode = 2;  // relaxed: a query is not part of captures by other threads
  int status = p->capture_of(stream, &capturing, &capture, 0, 0, 0);
  if (!status && !capturing) {
    // Handles are reused for other streams, so ask for the number, which a stream being captured does not permit.
    capture = 0;
    status = p->exchange_mode(&mode);
    if (!status) status = p->number_of(stream, &number);
    p->exchange_mode(&mode);
  }
  if (status) return status;
  uint64_t* own = p->table + p->n_buffers - p->n_zeros;
  int64_t i = 0;
  while (i < p->taken && (p->slots[i].stream != number || p->slots[i].capture != capture)) i++;
  if (i == SLOTS) return p->clear(own[0], 0, p->zero_bytes, stream);
  if (i == p->taken) p->slots[p->taken++] = (Slot){number, capture};
  const uint64_t first = own[0];
  for (int64_t j = 0; j < p->n_zeros; j++) own[j] += p->zeros + i * p->zero_bytes - first;
  return 0;
}

// ---- graphs, by the addresses that they hold

static uint64_t digest_of(const Plan* p) {
  uint64_t digest = 1469598103934665603u;
  for (int64_t i = 0; i < p->n_buffers; i++) digest = (digest ^ p->table[i]) * 1099511628211u;
  return digest;
}

static int64_t wanted(const Plan* p) { return p->wanted ? p->wanted : SIGHTS; }

static void forget(Plan* p, Known* k) {
  if (k->graph) {
    p->wanted = k->sights >= PAYS ? SIGHTS : wanted(p) < LONGEST ? 2 * wanted(p) : LONGEST;
    p->drop_exec(k->graph);
  }
  memset(k, 0, sizeof *k);
}

// The entry of the present addresses; if they are unknown, that of the least recently used ones is overwritten.
static Known* find(Plan* p) {
  uint64_t digest = digest_of(p);
  int64_t bytes = p->n_buffers * 8;
  Known* oldest = &p->known[0];
  for (int i = 0; i < RECENT; i++) {
    Known* k = &p->known[i];
    if (k->used && k->digest == digest && !memcmp(p->addresses + i * p->n_buffers, p->table, bytes)) return k;
    if (k->used < oldest->used) oldest = k;
  }
  forget(p, oldest);
  memcpy(p->addresses + (oldest - p->known) * p->n_buffers, p->table, bytes);
  oldest->digest = digest;
  return oldest;
}

static void make_room(Plan* p) {
  int graphs = 0;
  Known* oldest = 0;
  for (int i = 0; i < RECENT; i++) {
    Known* k = &p->known[i];
    if (!k->graph) continue;
    graphs++;
    if (!oldest || k->used < oldest->used) oldest = k;
  }
  if (graphs >= KEPT) forget(p, oldest);
}

// Capture the launches on the present addresses as a graph; with `nodes`, also return the graph before instantiation.
static int capture(Plan* p, Handle* made, Handle* nodes, Handle* from) {
  Handle graph = 0;
  int status = p->begin(p->side, 2);  // relaxed: concurrent work of other threads is not captured
  if (status) return status;
  status = enqueue(p, p->side, nodes);
  int ended = p->end(p->side, &graph);
  if (!status) status = ended;
  if (!status) status = p->instantiate(made, graph, 0);
  if (!status && nodes)
    *from = graph;
  else if (graph)
    p->drop_graph(graph);
  return status;
}

// ---- one graph for all other addresses

static void drop_movable(Plan* p) {
  if (p->movable) p->drop_exec(p->movable);
  if (p->captured) p->drop_graph(p->captured);
  p->movable = p->captured = 0;
}

static int holds_old(const Plan* p, const Launch* l) {
  for (int64_t i = 0; i < l->n_buffers; i++)
    if (p->over[l->buffers[i]] != p->table[l->buffers[i]]) return 1;
  return 0;
}

// Point the graph at the present addresses. Launches already enqueued keep theirs.
static int move(Plan* p) {
  for (int64_t i = 0; i < p->n_launches; i++) {
    const Launch* l = &p->launches[i];
    if (!holds_old(p, l)) continue;
    const Node node = {l->function, {l->grid[0], l->grid[1], l->grid[2]}, {l->block[0], l->block[1], l->block[2]},
                       l->shared, l->arguments, 0, 0, 0};
    int status = p->set_node(p->movable, p->nodes[i], &node);
    if (status) return status;
  }
  return 0;
}

static int run_stray(Plan* p, Handle stream) {
  if (p->strays < 0 || (!p->movable && ++p->strays < SIGHTS)) return enqueue(p, stream, 0);
  if (p->movable ? move(p) : capture(p, &p->movable, p->nodes, &p->captured)) {
    drop_movable(p);
    p->strays = -1;
    return enqueue(p, stream, 0);
  }
  memcpy(p->over, p->table, p->n_buffers * 8);
  return p->replay(p->movable, stream);
}

static int run(Plan* p, Handle stream) {
  int capturing = 0;
  // A graph cannot be launched into a stream that is being captured.
  if (!p->graphs || p->is_capturing(stream, &capturing) || capturing) return enqueue(p, stream, 0);
  Known* k = find(p);
  k->used = ++p->calls;
  if (!k->graph && ++k->sights < wanted(p)) return run_stray(p, stream);
  if (!k->graph) {
    make_room(p);
    int status = capture(p, &k->graph, 0, 0);
    if (status) return status;
    k->sights = 0;
  }
  k->sights++;
  return p->replay(k->graph, stream);
}

// ---- the entry

__attribute__((visibility("default"))) int mlc_gpu_entry(void** buffers, const long long* sizes, int threads) {
  Plan* p = (Plan*)(intptr_t)sizes[0];
  (void)threads;
  Handle before = 0, stream = 0;
  p->status = 0;
  if (p->flag && *p->flag) {  // set by an earlier call
    *p->flag = 0;
    return 1;
  }
  p->status = p->get_context(&before);
  if (p->status) return 0;
  // Another GPU's context may be current, or none in a thread that has not used CUDA.
  int changed = before != p->context;
  if (changed && (p->status = p->set_context(p->context))) return 0;
  memcpy(p->table, buffers, p->n_buffers * 8);
  p->status = p->stream_of(p->device, &stream) ? 999 : 0;
  if (!p->status && p->n_zeros) p->status = take_zeros(p, stream);
  if (!p->status) p->status = point_maps(p);
  if (!p->status) p->status = run(p, stream);
  if (changed && before) p->set_context(before);
  return 0;
}

__attribute__((visibility("default"))) void mlc_gpu_close(Plan* p) {
  for (int i = 0; i < RECENT; i++) forget(p, &p->known[i]);
  drop_movable(p);
}
