"""Store as 16 bits the temporaries that readers round to 16 bits; if only some readers do, store both forms.

Values are rounded where PyTorch rounds them, which may be in the reading kernel. Rounded before the store they take
half the memory, and as a factor of a matmul they are then blocks of a buffer that can be copied as they are. Writing a
second form costs as much as one kernel saves that reads it once: it pays if several kernels read it, or one repeatedly,
as a matmul does. No value changes.
"""

from __future__ import annotations

from compiler.ir import loop
from compiler.ir.dtype import STORAGE_ONLY, DType
from compiler.ir.expr import Cast, Expr, Load, cast, names, substitute
from compiler.ir.node import Node
from compiler.ir.rewrite import statements
from compiler.ir.statement import If, Kernel, Program, Stmt, Store, within
from compiler.ir.tensor import Tensor, row_major
from compiler.passes.loop.narrow import narrow


def demote(program: Program) -> Program:
    """Store f32 temporaries as 16 bits where readers round them to one 16-bit type."""
    return _add_rounded_copies(_demote_rounded(narrow(program)))


def _demote_rounded(program: Program) -> Program:
    """Change the type of temporaries that are only read rounded."""
    temps = {t.name for t in program.temps}
    found: dict[str, set[DType | None]] = {}
    for k in program.kernels:
        for name, kinds in _rounding_types(k, temps).items():
            found.setdefault(name, set()).update(kinds)
    types = {name: kind for name, kinds in found.items() if len(kinds) == 1 and (kind := kinds.pop()) is not None}
    if not types:
        return program
    return program.replace(
        temps=tuple(_with_type(t, types) for t in program.temps),
        kernels=tuple(_demote_in_kernel(k, types) for k in program.kernels),
    )


def _rounding_types(k: Kernel, temps: set[str]) -> dict[str, set[DType | None]]:
    """The types to which a kernel rounds each temporary that it uses.

    None among them stands for a load without rounding, or a write other than a plain store.
    """
    found: dict[str, set[DType | None]] = {}
    for s in k.body:
        for n in s.walk():
            kind = n.dtype if isinstance(n, Cast) and n.dtype in STORAGE_ONLY else None
            for x in n.below:
                if isinstance(x, Load) and x.buffer in temps:
                    found.setdefault(x.buffer, set()).add(None if x.dtype in STORAGE_ONLY else kind)
    stores = [n for n in within(k.body, Store) if n.buffer in temps]
    for s in stores:
        if s.op != "set" or s.buffer in found:
            found.setdefault(s.buffer, set()).add(None)
    return found


def _with_type(t: Tensor, types: dict[str, DType]) -> Tensor:
    return t.replace(dtype=types.get(t.name, t.dtype))


def _demote_in_kernel(k: Kernel, types: dict[str, DType]) -> Kernel:
    table: dict[Expr, Expr] = {}
    for s in k.body:
        for n in s.walk():
            match n:
                case Cast(Load(name) as load, dtype) if types.get(name) is dtype:
                    table[n] = load.replace(type=dtype)

    def stored(s: Stmt) -> Stmt | None:
        match s:
            case Store(buffer, _, value) if buffer in types:
                return s.replace(value=cast(value, types[buffer]))
        return None

    body = statements(substitute(k.body, table), stored)
    return k.replace(params=tuple(_with_type(p, types) for p in k.params), body=body)


def _add_rounded_copies(program: Program) -> Program:
    """Add a rounded copy of each temporary that is read both as it is and, often enough, rounded."""
    temps = {t.name for t in program.temps}
    taken = temps | {n for k in program.kernels for n in _names(k)}
    copies: dict[str, Tensor] = {}
    users: dict[str, list[tuple[Kernel, set[DType | None]]]] = {}
    for k in program.kernels:
        rounded = _rounding_types(k, temps)
        for p in k.params:
            users.setdefault(p.name, []).append((k, rounded.get(p.name, set())))
    for t in program.temps:
        dtype, often = (None, False) if t.dtype in STORAGE_ONLY else _rounding_of_readers(users.get(t.name, []), t.name)
        name = f"{t.name}_rounded"
        if dtype is not None and often and name not in taken and t.strides == row_major(t.shape):
            copies[t.name] = Tensor(name, dtype, t.shape, t.strides)
    if not copies:
        return program
    temporaries = tuple(x for t in program.temps for x in (t, *([copies[t.name]] if t.name in copies else [])))
    return program.replace(temps=temporaries, kernels=tuple(_use_rounded_copies(k, copies) for k in program.kernels))


def _names(k: Kernel) -> set[str]:
    found = (n for s in k.body for n in s.walk())
    own = {str(getattr(n, "name", None) or getattr(n, "var", "")) for n in found}
    return own | {p.name for p in k.params}


def _rounding_of_readers(users: list[tuple[Kernel, set[DType | None]]], name: str) -> tuple[DType | None, bool]:
    """Return the single type to which the readers of a temporary round it, and whether it is read so more than once.

    The type is None if there is none or several, or if a kernel accumulates into the temporary. `users` has each kernel
    with the types to which it rounds the temporary.
    """
    kinds: set[DType] = set()
    reads = 0
    for k, rounded in users:
        if name in k.writes:
            if any(n.buffer == name and n.op != "set" for n in within(k.body, Store)):
                return None, False
            continue
        if found := {kind for kind in rounded if kind is not None}:
            kinds |= found
            reads += 1 + any(_is_rounded_repeatedly(s, name, ()) for s in k.body)
    return (kinds.pop(), reads > 1) if len(kinds) == 1 else (None, False)


def _is_rounded_repeatedly(node: Node, name: str, around: tuple[loop.For, ...]) -> bool:
    """Whether a rounded load lies in a reduction and is invariant in another loop, so that it is rounded repeatedly."""
    match node:
        case Cast(Load(buffer), dtype) if buffer == name and dtype in STORAGE_ONLY:
            index_names = {v for i in node.arg.children() for v in names(i)}
            kinds = {f.kind for f in around if f.var in index_names}
            return "reduce" in kinds and any(f.var not in index_names for f in around)
        case loop.For():
            around = (*around, node)
    return any(_is_rounded_repeatedly(child, name, around) for child in node.children())


def _use_rounded_copies(k: Kernel, copies: dict[str, Tensor]) -> Kernel:
    """The kernel writing both forms of such a temporary, or reading the rounded form where it rounds one."""
    table: dict[Expr, Expr] = {}
    written = set(k.writes) & set(copies)
    for s in k.body:
        for n in s.walk():
            match n:
                case Cast(Load(name) as load, dtype) if (
                    name in copies and name not in written and copies[name].dtype is dtype
                ):
                    table[n] = load.replace(buffer=copies[name].name, type=dtype)
    if not written and not table:
        return k

    def with_rounded_stores(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            out.append(s.replace(body=with_rounded_stores(s.body)) if isinstance(s, loop.For | If) else s)
            if isinstance(s, Store) and s.buffer in written:
                to = copies[s.buffer]
                out.append(s.replace(buffer=to.name, value=cast(s.value, to.dtype)))
        return tuple(out)

    body = with_rounded_stores(substitute(k.body, table))
    used = {n.buffer for s in body for n in s.walk() if isinstance(n, Load | Store)}
    params = [x for p in k.params for x in (p, *([copies[p.name]] if p.name in copies else [])) if x.name in used]
    writes = tuple(x for w in k.writes for x in (w, *([copies[w].name] if w in written else [])))
    return k.replace(params=tuple(params), body=body, writes=writes)
