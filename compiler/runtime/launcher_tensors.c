// The tensors of calls: what torch offers, how arguments are read, and the memory of outputs and temporaries. launcher.c
// follows in the same translation unit.
//
// There are two ways to read a tensor. The fast one calls torch's stable C ABI (aoti_torch_*, 3 ns each) on the
// at::Tensor inside the Python object, at an offset that extension.py finds and verifies. The slow one, for a torch
// without the ABI, reads attributes (`t.shape`, `t.stride()`, `t.data_ptr()`, 40 to 60 ns each).
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>
#include <sys/mman.h>

typedef struct AtTensor AtTensor;  // at::Tensor, used by pointer only
typedef int (*Entry)(void** buffers, const long long* sizes, int threads);

static struct {
  PyObject *tensor, *parameter;  // classes whose objects hold an at::Tensor at `offset`
  PyObject* empty_strided;       // (shape, stride, dtype) -> tensor, if the ABI cannot make one
  Py_ssize_t offset;             // 0: read attributes
  int (*device_type)(AtTensor*, int32_t*);
  int (*layout)(AtTensor*, int32_t*);
  int (*dtype)(AtTensor*, int32_t*);
  int (*dim)(AtTensor*, int64_t*);
  int (*sizes)(AtTensor*, int64_t**);
  int (*strides)(AtTensor*, int64_t**);
  int (*data)(AtTensor*, void**);
  int (*empty)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, AtTensor**);
  int (*destroy)(AtTensor*);
  PyObject* (*wrap)(AtTensor*);  // null: allocate outputs by empty_strided
  int (*max_threads)(void);
  int (*device_index)(AtTensor*, int32_t*);  // null: only the CPU is supported
} torch;

static PyObject *name_dtype, *name_shape, *name_stride, *name_is_cpu, *name_is_neg, *name_data_ptr;

typedef struct {
  Py_ssize_t position;        // among the buffers
  PyObject *shape, *stride;   // tuples and a torch.dtype, owned by the launcher's `owned`
  PyObject* dtype;
  int32_t code;               // the ABI's number of the dtype
  int may_be_negated;         // the memory of a lazily negated view does not have its elements
  int64_t ndim, numel, bytes;
  int64_t* extents;           // ndim sizes, then ndim strides
  // Of a piece of a pack: the argument or output that is the pack, which precedes it or is itself, and the first byte
  // of the piece in it. -1: no piece.
  Py_ssize_t pack;
  int64_t begin;
} Spec;

typedef struct {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Entry entry;
  Py_ssize_t n_inputs, n_outputs, n_temporaries, n_buffers;
  Spec *inputs, *outputs;     // inputs without constants
  void** buffers;             // all addresses, constants filled in
  int64_t* offsets;           // of the temporaries, in the arena
  long long* sizes;
  int64_t arena_bytes;
  int64_t huge_bytes;         // least bytes of an output that asks for huge pages; 0: never
  char* arena;
  int arena_in_use;           // by a call
  int threads, release_gil;
  PyObject *admit, *owned;    // admit(position, value) -> a tensor that fits, or raises; owned: objects kept alive
  // For kernels on another device, whose buffers are aligned to ALIGNMENT and whose arena comes from torch. The entry
  // writes an error number to `status`, about which fail() raises.
  int32_t device, device_index, byte_code;  // the ABI's numbers of the device type and of uint8
  const int* status;
  PyObject* fail;
  PyObject* invalid;  // invalid(*arguments) raises the error for data that the entry rejects
  // Results that are arguments, which the entry writes: for each the result and the argument. `places` are the results
  // that are outputs.
  Py_ssize_t n_written, *written, *places;
} Launcher;

#define CPU 0
#define ALIGNMENT 16

#define HUGE_PAGE ((int64_t)2 << 20)

// ---- what an argument is

static int fits(const Spec* s, int64_t ndim, const int64_t* sizes, const int64_t* strides) {
  if (ndim != s->ndim) return 0;
  const int64_t *shape = s->extents, *stride = s->extents + ndim;
  for (int64_t i = 0; i < ndim; i++)
    if (sizes[i] != shape[i] || (strides[i] != stride[i] && shape[i] != 1 && s->numel != 0)) return 0;
  return 1;
}

static int is_true(PyObject* value, PyObject* name, int call) {
  PyObject* answer = call ? PyObject_CallMethodNoArgs(value, name) : PyObject_GetAttr(value, name);
  Py_XDECREF(answer);
  return answer == Py_True;
}

static int64_t integers(PyObject* tuple, int64_t* out, int64_t limit) {
  if (tuple == NULL || !PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) > limit) return -1;
  int64_t n = PyTuple_GET_SIZE(tuple);
  for (int64_t i = 0; i < n; i++) {
    out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    if (out[i] == -1 && PyErr_Occurred()) return -1;
  }
  return n;
}

static int read_by_attributes(const Spec* s, PyObject* value, void** address) {
  int64_t sizes[64], strides[64];
  PyObject* dtype = PyObject_GetAttr(value, name_dtype);
  Py_XDECREF(dtype);
  if (dtype != s->dtype || !is_true(value, name_is_cpu, 0)) return 0;
  PyObject* shape = PyObject_GetAttr(value, name_shape);
  int64_t ndim = integers(shape, sizes, 64);
  Py_XDECREF(shape);
  if (ndim != s->ndim) return 0;
  PyObject* stride = PyObject_CallMethodNoArgs(value, name_stride);
  int64_t n_strides = integers(stride, strides, 64);
  Py_XDECREF(stride);
  if (n_strides != ndim || !fits(s, ndim, sizes, strides)) return 0;
  PyObject* pointer = PyObject_CallMethodNoArgs(value, name_data_ptr);
  if (pointer == NULL) return 0;
  *address = PyLong_AsVoidPtr(pointer);
  Py_DECREF(pointer);
  return !PyErr_Occurred();
}

static int read_by_abi(const Launcher* l, const Spec* s, PyObject* value, void** address) {
  AtTensor* t = (AtTensor*)((char*)value + torch.offset);
  int32_t device, index, layout, dtype;
  int64_t ndim, *sizes, *strides;
  if (torch.device_type(t, &device) || device != l->device || torch.layout(t, &layout) || layout != 0) return 0;
  if (device != CPU && (torch.device_index(t, &index) || index != l->device_index)) return 0;
  if (torch.dtype(t, &dtype) || dtype != s->code || torch.dim(t, &ndim)) return 0;
  if (torch.sizes(t, &sizes) || torch.strides(t, &strides) || !fits(s, ndim, sizes, strides)) return 0;
  return !torch.data(t, address);
}

// Whether the kernel may read `value`, and its address if so. May set a Python error if not.
static int read_tensor(const Launcher* l, const Spec* s, PyObject* value, void** address) {
  PyObject* class = (PyObject*)Py_TYPE(value);
  if (class != torch.tensor && class != torch.parameter) return 0;
  int is_readable = torch.offset ? read_by_abi(l, s, value, address) : read_by_attributes(s, value, address);
  if (!is_readable || (*address == NULL && s->numel != 0)) return 0;
  if (l->status != NULL && (uintptr_t)*address % ALIGNMENT) return 0;
  return !s->may_be_negated || !is_true(value, name_is_neg, 1);
}

// ---- memory

static void advise_huge_pages(void* address, int64_t bytes) {
  uintptr_t page = 4095, first = ((uintptr_t)address + page) & ~page, last = ((uintptr_t)address + bytes) & ~page;
#ifdef MADV_HUGEPAGE
  if (first < last) madvise((void*)first, last - first, MADV_HUGEPAGE);  // only advice: a refusal costs speed
#endif
}

static PyObject* new_output(const Launcher* l, const Spec* s, void** address) {
  PyObject* tensor;
  if (torch.wrap != NULL) {
    AtTensor* t;
    if (torch.empty(s->ndim, s->extents, s->extents + s->ndim, s->code, l->device, l->device_index, &t))
      return PyErr_Format(PyExc_MemoryError, "cannot allocate %lld bytes for an output", (long long)s->bytes);
    torch.data(t, address);
    tensor = torch.wrap(t);
    torch.destroy(t);
  } else {
    tensor = PyObject_CallFunctionObjArgs(torch.empty_strided, s->shape, s->stride, s->dtype, NULL);
    PyObject* pointer = tensor == NULL ? NULL : PyObject_CallMethodNoArgs(tensor, name_data_ptr);
    if (pointer == NULL) {
      Py_XDECREF(tensor);
      return NULL;
    }
    *address = PyLong_AsVoidPtr(pointer);
    Py_DECREF(pointer);
  }
  if (l->huge_bytes && l->device == CPU && s->bytes >= l->huge_bytes) advise_huge_pages(*address, s->bytes);
  return tensor;
}

// Whether argument or output `i` is a piece of a pack other than the one at whose place the pack is.
static int is_within_pack(const Spec* specs, Py_ssize_t i) { return specs[i].pack >= 0 && specs[i].pack != i; }

// Replace the addresses of packs by those of their pieces.
static void place_pieces(const Spec* specs, Py_ssize_t n, void** buffers) {
  for (Py_ssize_t i = n - 1; i >= 0; i--)  // a pack's own place is its first, and is replaced last
    if (specs[i].pack >= 0) buffers[specs[i].position] = (char*)buffers[specs[specs[i].pack].position] + specs[i].begin;
}

static char* new_arena(int64_t bytes) {
  int64_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : 64;
  char* arena = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (arena == NULL)
    PyErr_Format(PyExc_MemoryError, "cannot allocate %lld bytes for temporaries", (long long)bytes);
  else if (bytes >= HUGE_PAGE)
    advise_huge_pages(arena, bytes);
  return arena;
}

// The launcher's own arena, or a temporary one if another thread (or an outer call) uses it.
static char* acquire_arena(Launcher* l) {
  if (__atomic_exchange_n(&l->arena_in_use, 1, __ATOMIC_ACQUIRE)) return new_arena(l->arena_bytes);
  if (l->arena == NULL) l->arena = new_arena(l->arena_bytes);
  if (l->arena == NULL) __atomic_store_n(&l->arena_in_use, 0, __ATOMIC_RELEASE);
  return l->arena;
}

static void release_arena(Launcher* l, char* arena) {
  if (arena == l->arena)
    __atomic_store_n(&l->arena_in_use, 0, __ATOMIC_RELEASE);
  else
    free(arena);
}
