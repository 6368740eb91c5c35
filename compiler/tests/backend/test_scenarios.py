"""What happens around compiled functions: training, hooks, modes, caches, copies, threads; each as in eager.

A scenario is a function of what compiles. Some of them are run, drawn anew each time. Kernels are not built.
"""

import copy
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from compiler.execution import executable
from compiler.tests.backend.test_backend_programs import BUGS, Interpreted, places
from compiler.tests.meaning import fresh_seed

Function = Callable[..., Any]
Compile = Callable[[Function], Any]
DRAWN = 4


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(executable, "build_captured", lambda captured, *_, **__: Interpreted(captured))
    yield
    torch._dynamo.reset()


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))


def slopes(net: nn.Module) -> list[Tensor | None]:
    return [p.grad for p in net.parameters()]


def accumulated(run: Compile) -> Any:
    net = network()
    own = run(net)
    for _ in range(3):
        own(torch.randn(4, 6)).square().mean().backward()
    return nn.utils.clip_grad_norm_(net.parameters(), 0.1), slopes(net)


def frozen_between(run: Compile) -> Any:
    net, x = network(), torch.randn(4, 6)
    own = run(net)
    own(x).sum().backward()
    net[0].requires_grad_(False)
    net.zero_grad()
    own(x).square().sum().backward()
    return slopes(net)


def trained_and_evaluated(run: Compile) -> Any:
    net, x = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), torch.randn(4, 6)
    own = run(net)
    made = [own(x).detach()]
    net.eval()
    made.append(own(x).detach())
    net.train()
    return made, own(x).detach(), list(net.state_dict().values())


def replaced(run: Compile) -> Any:
    net, x = nn.Linear(6, 2), torch.randn(4, 6)
    own = run(net)
    made = [own(x).detach()]
    net.weight.data = net.weight.data * 2
    made.append(own(x).detach())
    net.weight = nn.Parameter(torch.ones(2, 6))
    made.append(own(x).detach())
    net.double()
    return made, own(x.double()).detach()


def copied(run: Compile) -> Any:
    net, x = network(), torch.randn(4, 6)
    own = run(net)
    before = own(x).detach()
    other = copy.deepcopy(own)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1)
    return before, other(x).detach(), own(x).detach()


def hooked(run: Compile) -> Any:
    net, seen = network(), []
    weight: Any = net[2].weight
    weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    x = torch.randn(4, 6, requires_grad=True)
    y = run(net)(x)
    y.retain_grad()
    y.register_hook(lambda grad: grad.clamp(-0.5, 0.5))
    (y * 3).sum().backward()
    return x.grad, y.grad, seen, slopes(net)


def pushed_back_twice(run: Compile) -> Any:
    x = torch.randn(4, 6, requires_grad=True)
    y = run(lambda x: (x.sin() * x).sum())(x)
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()
    return x.grad


def of_one_result(run: Compile) -> Any:
    x = torch.randn(4, 6, requires_grad=True)
    _, y, _ = run(lambda x: (x.sin(), x.cos(), x * 3))(x)
    return torch.autograd.grad(y, x, torch.randn(4, 6))


def checkpointed(run: Compile) -> Any:
    net, x = network(), torch.randn(4, 6, requires_grad=True)
    checkpoint(run(net), x, use_reentrant=False).sum().backward()
    run(lambda x: checkpoint(net, x, use_reentrant=False))(x).square().sum().backward()
    return x.grad, slopes(net)


def modes_in_turn(run: Compile) -> Any:
    x = torch.randn(4, 6, requires_grad=True)
    own, made = run(lambda x: x.sin() * 2), []
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            y = own(x)
            made.append((y.requires_grad, y.is_inference(), y.detach().clone()))
    return made


def cached(run: Compile) -> Any:
    keys, values = torch.zeros(2, 2, 5, 4), torch.zeros(2, 2, 5, 4)

    def step(q: Tensor, k: Tensor, v: Tensor, at: Tensor) -> Tensor:
        keys.index_copy_(2, at, k)
        values.index_copy_(2, at, v)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=(torch.arange(5) <= at)[None])

    own = run(step)
    return [own(*(torch.randn(2, 2, 1, 4) for _ in range(3)), torch.tensor([n])) for n in range(3)], keys, values


def grown(run: Compile) -> Any:
    own, k, made = run(lambda k, a: (torch.cat([k, a], 1), torch.cat([k, a], 1).softmax(1))), torch.zeros(2, 0, 4), []
    for _ in range(4):
        k, y = own(k, torch.randn(2, 1, 4))
        made.append(y)
    return made, k


def overlapping(run: Compile) -> Any:
    x = torch.randn(5, 6)

    def both(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        b.mul_(2)
        return (a * b).sum()

    return run(both)(x[:3], x[2:]), x, run(lambda a, b: a.add_(1) + b)(x, x), x


def expanded(run: Compile) -> Any:
    """Results whose elements overlap, of sizes and steps that vary."""
    spread = run(lambda x, k: (x.contiguous().as_strided((2, 8), (0, k)), (x * 2)[:1].expand(3, *x.shape[1:])))
    gradients = []
    for rows, step in ((11, 1), (6, 2), (24, 1)):
        x = torch.randn(rows, 9, 2).transpose(0, 1).requires_grad_()
        sum((y * torch.randn_like(y)).sum() for y in spread(x, step)).backward()
        gradients.append(x.grad)
    return gradients


def views_of_results(run: Compile) -> Any:
    y, first, turned = run(lambda x: (lambda y: (y, y[0], y.t()))(x * 2))(torch.randn(4, 6))
    y.zero_()
    return first, turned


def in_lists(run: Compile) -> Any:
    xs = [torch.randn(4, 6) for _ in range(3)]

    def all_of(xs: list[Tensor]) -> int:
        for n, x in enumerate(xs):
            x.add_(n)
        xs.append(xs[0] * 2)
        return len(xs)

    return run(all_of)(xs), xs


def counted(run: Compile) -> Any:
    class Counting(nn.Module):
        calls: Tensor
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))
            self.register_buffer("mean", torch.zeros(6))
            self.times = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.mean.lerp_(x.mean(0), 0.1)
            self.times += 1
            return (x - self.mean) / self.calls

    net = Counting()
    own = run(net)
    return [own(torch.randn(4, 6)) for _ in range(3)], net.calls, net.mean, net.times


def arguments_in_turn(run: Compile) -> Any:
    own, x = run(lambda x, k: (x * k, k + 1)), torch.randn(4, 6)
    sliced = run(lambda x, k: x[:k] * 2)
    return [own(x, k) for k in (1, 2, 3, 0.5, float("inf"), True)], [sliced(x, k) for k in (1, 2, 3, 0, -1)]


def tensors_in_turn(run: Compile) -> Any:
    own, x = run(lambda x: (x * 2 + 1, x.sum(0))), torch.randn(6, 6)
    wide = (x.double(), x.half(), x.bfloat16(), x.int(), x > 0)
    return [own(y) for y in (x, x.t(), x[::2], x[:, ::2], x[:1].expand(4, 6), x[:0], x[0], x[:, None], *wide)]


def in_threads(run: Compile) -> Any:
    own = [run(lambda x, k=k: (x * (k + 1)).sin().sum(1)) for k in range(3)]
    xs, made = torch.randn(3, 4, 6), [torch.empty(0)] * 3

    def work(k: int) -> None:
        made[k] = own[k](xs[k])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return made


def per_example(run: Compile) -> Any:
    def norms(w: Tensor, x: Tensor, y: Tensor) -> Any:
        made = torch.func.vmap(torch.func.grad(lambda w, x, y: F.cross_entropy(x @ w, y)), (None, 0, 0))(w, x, y)
        return made.flatten(1).norm(dim=1), made.mean(0)

    return run(norms)(torch.randn(6, 3), torch.randn(4, 6), torch.randint(0, 3, (4,)))


def ensemble(run: Compile) -> Any:
    nets = [nn.Linear(6, 3) for _ in range(3)]
    held = {k: v.detach() for k, v in torch.func.stack_module_state(nets)[0].items()}
    one = torch.func.vmap(lambda p, x: torch.func.functional_call(nets[0], p, (x,)), (0, None))
    return run(lambda p, x: one(p, x))(held, torch.randn(4, 6))


SCENARIOS = (
    accumulated, frozen_between, trained_and_evaluated, replaced, copied, hooked, pushed_back_twice, of_one_result,
    checkpointed, modes_in_turn, cached, grown, overlapping, expanded, views_of_results, in_lists, counted,
    arguments_in_turn, tensors_in_turn, in_threads, per_example, ensemble,
)  # fmt: skip


def go_as_in_eager(scenarios: Sequence[Callable[[Compile], Any]]) -> None:
    """Some of the scenarios, each compiled and in eager."""
    seed = fresh_seed()
    for scenario in random.Random(seed).sample(scenarios, DRAWN):
        torch._dynamo.reset()
        torch.manual_seed(seed)
        ours = pytree.tree_leaves(scenario(lambda f: torch.compile(f, backend="mlcomp")))
        torch.manual_seed(seed)
        theirs = pytree.tree_leaves(scenario(lambda f: f))
        where = f"{scenario.__name__}, seed {seed}: "
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3, equal_nan=True, msg=where.__add__)
        seen, wanted = ([x for x in made if isinstance(x, Tensor)] for made in (ours, theirs))
        assert [x.requires_grad for x in seen] == [x.requires_grad for x in wanted], where
        assert [p[-1] for p in places(seen)] == [p[-1] for p in places(wanted)], where


@pytest.mark.filterwarnings("ignore", BUGS)
def test_scenarios_go_as_in_eager() -> None:
    go_as_in_eager(SCENARIOS)
