// A compiled kernel as a Python callable: checks tensors against the plan, calls the kernel, and returns fresh tensors.
// Built once per machine and Python, without torch's headers: torch's functions are passed in as addresses.
// launcher_tensors.c precedes in the same translation unit.

// ---- a call

// Find a tensor for an argument that fails the quick check (such as a subclass), and keep it alive in `substitutes`, by
// the argument's position.
static int admit(Launcher* l, Py_ssize_t i, PyObject* value, void** address, PyObject** substitutes) {
  PyErr_Clear();
  PyObject* substitute = PyObject_CallFunction(l->admit, "nO", i, value);
  if (substitute == NULL) return 0;
  if (*substitutes == NULL) *substitutes = PyDict_New();
  PyObject* position = PyLong_FromSsize_t(i);
  int is_kept = *substitutes != NULL && position != NULL && PyDict_SetItem(*substitutes, position, substitute) == 0;
  Py_XDECREF(position);
  Py_DECREF(substitute);
  if (!is_kept) return 0;
  if (read_tensor(l, &l->inputs[i], substitute, address)) return 1;
  if (!PyErr_Occurred()) PyErr_Format(PyExc_TypeError, "argument %zd has no memory that a kernel can read", i);
  return 0;
}

// Copy what was written to substitutes to the arguments that these stand for.
static int write_back(const Launcher* l, PyObject* const* arguments, PyObject* substitutes) {
  for (Py_ssize_t i = 0; i < l->n_written; i++) {
    PyObject *argument = arguments[l->written[2 * i + 1]], *position = PyLong_FromSsize_t(l->written[2 * i + 1]);
    if (position == NULL) return 0;
    PyObject* substitute = PyDict_GetItemWithError(substitutes, position);
    Py_DECREF(position);
    PyObject* result = substitute == NULL ? Py_NewRef(Py_None) : PyObject_CallMethod(argument, "copy_", "O", substitute);
    Py_XDECREF(result);
    if (PyErr_Occurred()) return 0;
  }
  return 1;
}

static void place_temporaries(const Launcher* l, void** buffers, char* arena) {
  for (Py_ssize_t i = 0; i < l->n_temporaries; i++)
    buffers[l->n_buffers - l->n_temporaries + i] = arena + l->offsets[i];
}

static int report_invalid(const Launcher* l, PyObject* const* arguments) {
  PyObject* raised = PyObject_Vectorcall(l->invalid, arguments, l->n_inputs, NULL);
  Py_XDECREF(raised);
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "an index, a target or a divisor in the data is wrong");
  return 0;
}

// On another device the entry only enqueues. torch reuses the arena's memory only after the work enqueued so far.
static int enqueue(Launcher* l, PyObject* const* arguments, void** buffers) {
  AtTensor* arena = NULL;
  if (l->arena_bytes) {
    const int64_t size = l->arena_bytes, stride = 1;
    void* start;
    if (torch.empty(1, &size, &stride, l->byte_code, l->device, l->device_index, &arena)) {
      PyErr_Format(PyExc_MemoryError, "cannot allocate %lld bytes for temporaries", (long long)size);
      return 0;
    }
    torch.data(arena, &start);
    place_temporaries(l, buffers, start);
  }
  const int failed = l->entry(buffers, l->sizes, 0);
  if (arena != NULL) torch.destroy(arena);
  if (*l->status == 0) return !failed || report_invalid(l, arguments);
  PyObject* raised = PyObject_CallNoArgs(l->fail);
  Py_XDECREF(raised);
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "a launch failed");
  return 0;
}

static int run(Launcher* l, PyObject* const* arguments, void** buffers) {
  if (l->status != NULL) return enqueue(l, arguments, buffers);
  char* arena = NULL;
  if (l->n_temporaries) {
    if ((arena = acquire_arena(l)) == NULL) return 0;
    place_temporaries(l, buffers, arena);
  }
  int threads = l->threads ? l->threads : torch.max_threads(), failed;
  if (l->release_gil) {
    PyThreadState* state = PyEval_SaveThread();
    failed = l->entry(buffers, l->sizes, threads);
    PyEval_RestoreThread(state);
  } else {
    failed = l->entry(buffers, l->sizes, threads);
  }
  if (arena != NULL) release_arena(l, arena);
  return !failed || report_invalid(l, arguments);
}

static PyObject* launch_into(Launcher* l, PyObject* const* arguments, void** buffers, PyObject** substitutes) {
  for (Py_ssize_t i = 0; i < l->n_inputs; i++) {
    void** address = &buffers[l->inputs[i].position];
    if (is_within_pack(l->inputs, i)) {
      if (arguments[i] == Py_None) continue;
      return PyErr_Format(PyExc_TypeError, "argument %zd is part of argument %zd, and is to be None", i,
                          l->inputs[i].pack);
    }
    if (!read_tensor(l, &l->inputs[i], arguments[i], address) && !admit(l, i, arguments[i], address, substitutes))
      return NULL;
  }
  PyObject* results = PyTuple_New(l->n_outputs + l->n_written);
  if (results == NULL) return NULL;
  for (Py_ssize_t i = 0; i < l->n_written; i++)
    PyTuple_SET_ITEM(results, l->written[2 * i], Py_NewRef(arguments[l->written[2 * i + 1]]));
  int ok = 1;
  for (Py_ssize_t i = 0; i < l->n_outputs && ok; i++) {
    void** address = &buffers[l->outputs[i].position];
    PyObject* output = is_within_pack(l->outputs, i) ? Py_NewRef(Py_None) : new_output(l, &l->outputs[i], address);
    if ((ok = output != NULL)) PyTuple_SET_ITEM(results, l->places[i], output);
  }
  if (ok) place_pieces(l->inputs, l->n_inputs, buffers), place_pieces(l->outputs, l->n_outputs, buffers);
  ok = ok && run(l, arguments, buffers) && (*substitutes == NULL || write_back(l, arguments, *substitutes));
  if (!ok) Py_CLEAR(results);
  return results;
}

static PyObject* launch(PyObject* self, PyObject* const* arguments, size_t flags, PyObject* keywords) {
  Launcher* l = (Launcher*)self;
  Py_ssize_t n = PyVectorcall_NARGS(flags);
  if (keywords != NULL && PyTuple_GET_SIZE(keywords))
    return PyErr_Format(PyExc_TypeError, "a compiled kernel takes no keyword arguments, got %R", keywords);
  if (n != l->n_inputs) return PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", l->n_inputs, n);
  void* on_stack[32];
  void** buffers = l->n_buffers <= 32 ? on_stack : PyMem_Malloc(l->n_buffers * sizeof(void*));
  if (buffers == NULL) return PyErr_NoMemory();
  memcpy(buffers, l->buffers, l->n_buffers * sizeof(void*));
  PyObject* substitutes = NULL;
  PyObject* outputs = launch_into(l, arguments, buffers, &substitutes);
  Py_XDECREF(substitutes);
  if (buffers != on_stack) PyMem_Free(buffers);
  return outputs;
}

// ---- making and dropping a launcher

static int read_spec(Spec* s, PyObject* row) {
  int may_be_negated, code;
  Py_ssize_t bytes, begin;
  if (!PyArg_ParseTuple(row, "nO!O!Oinpnn", &s->position, &PyTuple_Type, &s->shape, &PyTuple_Type, &s->stride,
                        &s->dtype, &code, &bytes, &may_be_negated, &s->pack, &begin))
    return 0;
  s->begin = begin;
  s->code = code, s->bytes = bytes, s->may_be_negated = may_be_negated, s->ndim = PyTuple_GET_SIZE(s->shape);
  s->extents = PyMem_Calloc(2 * s->ndim + 1, sizeof(int64_t));
  if (s->extents == NULL) return 0;
  int64_t m = integers(s->shape, s->extents, s->ndim), k = integers(s->stride, s->extents + s->ndim, s->ndim);
  if (m != k) PyErr_SetString(PyExc_ValueError, "a shape and its strides have different lengths");
  s->numel = 1;
  for (int64_t i = 0; i < s->ndim; i++) s->numel *= s->extents[i];
  return m == k && !PyErr_Occurred();
}

static Spec* read_specs(PyObject* rows, Py_ssize_t* n) {
  *n = PyTuple_GET_SIZE(rows);
  Spec* specs = PyMem_Calloc(*n + 1, sizeof(Spec));
  for (Py_ssize_t i = 0; specs != NULL && i < *n; i++) {
    if (!read_spec(&specs[i], PyTuple_GET_ITEM(rows, i))) break;
    if (specs[i].pack > i) PyErr_Format(PyExc_ValueError, "pack %zd comes after its part %zd", specs[i].pack, i);
  }
  return specs;
}

// Read pairs (result, argument) in ascending order of results, and find the results that are outputs.
static int read_written(Launcher* l, PyObject* rows) {
  l->n_written = PyTuple_GET_SIZE(rows);
  l->written = PyMem_Calloc(2 * l->n_written + 1, sizeof(Py_ssize_t));
  l->places = PyMem_Calloc(l->n_outputs + 1, sizeof(Py_ssize_t));
  if (l->written == NULL || l->places == NULL) return PyErr_NoMemory() != NULL;
  int exist = 1;
  for (Py_ssize_t i = 0; i < l->n_written; i++) {
    Py_ssize_t* row = &l->written[2 * i];
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "nn", &row[0], &row[1])) return 0;
    exist = exist && 0 <= row[1] && row[1] < l->n_inputs;
  }
  Py_ssize_t i = 0, output = 0;
  for (Py_ssize_t result = 0; result < l->n_outputs + l->n_written; result++)
    if (i < l->n_written && l->written[2 * i] == result)
      i++;
    else if (output < l->n_outputs)
      l->places[output++] = result;
  if (!exist || i != l->n_written)
    PyErr_SetString(PyExc_ValueError, "a written argument, or the result that it is, does not exist");
  return exist && i == l->n_written;
}

static PyObject* create(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  unsigned long long entry, status = 0;
  PyObject *inputs, *outputs, *constants, *offsets, *sizes, *admit, *owned, *invalid, *fail = Py_None, *written;
  Py_ssize_t arena, huge;
  int threads, release, device = CPU, device_index = 0, byte_code = 0;
  if (!PyArg_ParseTuple(args, "KO!O!O!O!nO!ipnOOOO!|iiiKO", &entry, &PyTuple_Type, &inputs, &PyTuple_Type, &outputs,
                        &PyTuple_Type, &constants, &PyTuple_Type, &offsets, &arena, &PyTuple_Type, &sizes, &threads,
                        &release, &huge, &admit, &owned, &invalid, &PyTuple_Type, &written, &device, &device_index,
                        &byte_code, &status, &fail))
    return NULL;
  int is_elsewhere = device != CPU || status;
  if (is_elsewhere && (!torch.offset || !torch.wrap || !torch.device_index)) {
    PyErr_SetString(PyExc_RuntimeError, "this torch has no ABI that gives tensors on other devices");
    return NULL;
  }
  Launcher* l = (Launcher*)type->tp_alloc(type, 0);
  if (l == NULL) return NULL;
  l->vectorcall = launch, l->entry = (Entry)(uintptr_t)entry;
  l->admit = Py_NewRef(admit), l->owned = Py_NewRef(args), l->fail = Py_NewRef(fail), l->invalid = Py_NewRef(invalid);
  l->device = device, l->device_index = device_index, l->byte_code = byte_code;
  l->status = (const int*)(uintptr_t)status;
  l->threads = threads, l->release_gil = release, l->huge_bytes = huge, l->arena_bytes = arena;
  l->inputs = read_specs(inputs, &l->n_inputs);
  l->outputs = read_specs(outputs, &l->n_outputs);
  Py_ssize_t n_constants = PyTuple_GET_SIZE(constants), n_sizes = PyTuple_GET_SIZE(sizes);
  l->n_temporaries = PyTuple_GET_SIZE(offsets);
  l->n_buffers = l->n_inputs + n_constants + l->n_outputs + l->n_temporaries;
  l->buffers = PyMem_Calloc(l->n_buffers + 1, sizeof(void*));
  l->offsets = PyMem_Calloc(l->n_temporaries + 1, sizeof(int64_t));
  l->sizes = PyMem_Calloc(n_sizes + 1, sizeof(long long));
  if (!l->inputs || !l->outputs || !l->buffers || !l->offsets || !l->sizes) PyErr_NoMemory();
  if (!PyErr_Occurred()) read_written(l, written);
  if (!PyErr_Occurred()) integers(offsets, l->offsets, l->n_temporaries);
  for (Py_ssize_t i = 0; i < n_sizes && !PyErr_Occurred(); i++)
    l->sizes[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, i));
  for (Py_ssize_t i = 0; i < n_constants && !PyErr_Occurred(); i++) {  // (position, address)
    Py_ssize_t position;
    unsigned long long address;
    if (PyArg_ParseTuple(PyTuple_GET_ITEM(constants, i), "nK", &position, &address))
      l->buffers[position] = (void*)(uintptr_t)address;
  }
  if (PyErr_Occurred()) Py_CLEAR(l);
  return (PyObject*)l;
}

static int traverse(PyObject* self, visitproc visit, void* arg) {
  Launcher* l = (Launcher*)self;
  Py_VISIT(l->admit);
  Py_VISIT(l->owned);
  Py_VISIT(l->fail);
  Py_VISIT(l->invalid);
  return 0;
}

static int clear(PyObject* self) {
  Launcher* l = (Launcher*)self;
  Py_CLEAR(l->admit);
  Py_CLEAR(l->owned);
  Py_CLEAR(l->fail);
  Py_CLEAR(l->invalid);
  return 0;
}

static void free_specs(Spec* specs, Py_ssize_t n) {
  for (Py_ssize_t i = 0; specs != NULL && i < n; i++) PyMem_Free(specs[i].extents);
  PyMem_Free(specs);
}

static void deallocate(PyObject* self) {
  Launcher* l = (Launcher*)self;
  PyObject_GC_UnTrack(self);
  clear(self);
  free_specs(l->inputs, l->n_inputs);
  free_specs(l->outputs, l->n_outputs);
  PyMem_Free(l->written);
  PyMem_Free(l->places);
  PyMem_Free(l->buffers);
  PyMem_Free(l->offsets);
  PyMem_Free(l->sizes);
  free(l->arena);
  Py_TYPE(self)->tp_free(self);
}

static PyTypeObject launcher_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mlc_launcher.Launcher",
    .tp_doc = "One compiled kernel: call it with tensors, get a tuple of fresh tensors.",
    .tp_basicsize = sizeof(Launcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Launcher, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = create,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_dealloc = deallocate,
};

// ---- the module

static PyObject* set_torch_functions(PyObject* module, PyObject* args) {
  unsigned long long a[12];
  PyObject *tensor, *parameter, *empty_strided;
  if (!PyArg_ParseTuple(args, "OOOn(KKKKKKKKKKKK)", &tensor, &parameter, &empty_strided, &torch.offset, a, a + 1, a + 2,
                        a + 3, a + 4, a + 5, a + 6, a + 7, a + 8, a + 9, a + 10, a + 11))
    return NULL;
  Py_XSETREF(torch.tensor, Py_NewRef(tensor));
  Py_XSETREF(torch.parameter, Py_NewRef(parameter));
  Py_XSETREF(torch.empty_strided, Py_NewRef(empty_strided));
  memcpy(&torch.device_type, a, sizeof(a));
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"use", set_torch_functions, METH_VARARGS,
     "use(Tensor, Parameter, empty_strided, offset, (device_type, layout, dtype, dim, sizes, strides, data, empty, "
     "destroy, wrap, max_threads, device_index)): what torch offers, functions by address; offset 0 and wrap 0 avoid the ABI."},
    {0}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "mlc_launcher", NULL, -1, methods};

PyMODINIT_FUNC PyInit_mlc_launcher(void) {
  name_dtype = PyUnicode_InternFromString("dtype"), name_shape = PyUnicode_InternFromString("shape");
  name_stride = PyUnicode_InternFromString("stride"), name_is_cpu = PyUnicode_InternFromString("is_cpu");
  name_is_neg = PyUnicode_InternFromString("is_neg"), name_data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* module = PyModule_Create(&definition);
  if (module != NULL && PyModule_AddType(module, &launcher_type) < 0) Py_CLEAR(module);
  return module;
}
