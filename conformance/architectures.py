"""Count the architectures of the transformers package that the backend compiles completely.

A small version of each architecture, with random weights, is called once without gradients: in eager, in f64, and under
`torch.compile(backend="mlcomp")`. Its verdict is `whole` if it is compiled completely and its result is right, `parts`
if some calls run in eager, `wrong` if its distance from f64 exceeds four times eager's, `error` if compiling it fails
or it does not end in time, and `eager` if no small version of it runs in eager.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import multiprocessing
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from conformance.report import tables

NAMES = """
albert apertus arcee bart beit bert bert-generation bigbird_pegasus biogpt bit blenderbot bloom camembert
clip_text_model clip_vision_model codegen cohere cohere2 convbert convnext convnextv2 ctrl data2vec-text
data2vec-vision deberta deberta-v2 deepseek_v3 deit dinov2 dinov2_with_registers distilbert efficientnet electra ernie
esm exaone4 falcon fnet focalnet gemma gemma2 gemma3_text glm glm4 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese
gptj granite granitemoe helium hiera ibert imagegpt jetmoe levit llama longt5 m2m_100 marian mbart megatron-bert
mistral mixtral mobilebert mobilenet_v2 mobilevit modernbert mpnet mpt mt5 nemotron nystromformer olmo olmo2 olmoe opt
pegasus persimmon phi phi3 phimoe poolformer pvt_v2 qwen2 qwen2_moe qwen3 qwen3_moe regnet rembert resnet roberta
roformer segformer siglip_vision_model smollm3 squeezebert stablelm starcoder2 swin swinv2 t5 vit vit_mae vit_msn xglm
xlm-roberta yolos
""".split()  # noqa: SIM905
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
VERDICTS = ("whole", "parts", "wrong", "error", "eager")
SECONDS = 240  # time limit of one architecture
LARGEST = 1e8  # most weights of a model that is tried
# Small value -> names of the settings of transformers configurations that get it.
SMALL: dict[int, str] = {
    64: "max_position_embeddings n_positions n_ctx seq_length max_sequence_length max_source_positions image_size "
        "hidden_size n_embd d_model dim embed_dim embedding_size n_inner_dim decoder_hidden_size",
    48: "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff n_inner moe_intermediate_size "
        "shared_expert_intermediate_size decoder_intermediate_size",
    99: "vocab_size",
    16: "patch_size kv_lora_rank q_lora_rank d_kv attention_head_size kv_channels head_dim",
    8: "qk_rope_head_dim qk_nope_head_dim v_head_dim rotary_dim",
    4: "num_attention_heads n_heads n_head num_heads encoder_attention_heads decoder_attention_heads num_experts "
       "num_local_experts n_routed_experts decoder_num_attention_heads",
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers "
       "num_key_value_heads num_experts_per_tok first_k_dense_replace decoder_num_hidden_layers",
    1: "n_group topk_group",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """The verdict on an architecture and the reason for it; `graphs` is the number of graphs compiled."""

    name: str
    dtype: str
    verdict: str
    seconds: float = 0.0
    why: str = ""
    graphs: int = 0


def small_config(library: Any, name: str, values: Sequence[int]) -> Any:
    """Return the configuration of an architecture with the settings of `SMALL[value]` reduced, for each of `values`."""
    configuration = library.AutoConfig.for_model(name)
    defaults = configuration.to_dict()
    for value in values:
        for word in SMALL[value].split():
            is_count = isinstance(defaults.get(word), int) and not isinstance(defaults[word], bool)
            if hasattr(configuration, word) and (is_count or word == "vocab_size"):
                setattr(configuration, word, value)
    types = getattr(configuration, "layer_types", None)
    if types:
        configuration.layer_types = list(types[:1]) + list(types[-1:])
    for word in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if word == "pad_token_id" or getattr(configuration, word, None) is not None:
            setattr(configuration, word, 1)
    return configuration


def small_model(library: Any, name: str) -> tuple[Any, dict[str, torch.Tensor], torch.Tensor]:
    """Return a small model that runs in eager, its inputs and its result.

    If a model with all of the small values fails, one with few layers and the default widths is tried.
    """
    problem: Exception = ValueError("it is too large")
    for values in (tuple(SMALL), (99, 2)):
        try:
            configuration = small_config(library, name, values)
            with torch.device("meta"):
                size = sum(p.numel() for p in library.AutoModel.from_config(configuration).parameters())
            if size < LARGEST:
                model = library.AutoModel.from_config(configuration).eval()
                inputs = random_inputs(model)
                return model, inputs, main_result(model, inputs)
        except Exception as error:  # the small widths may be inconsistent for this architecture
            problem = error
    raise problem


def random_inputs(model: Any) -> dict[str, torch.Tensor]:
    """Return a batch of two random token sequences or images, according to the name of the model's main input."""
    generator = torch.Generator().manual_seed(0)
    if model.main_input_name == "pixel_values":
        size = getattr(model.config, "image_size", None) or 64
        height, width = size if isinstance(size, Sequence) else (size, size)
        return {"pixel_values": torch.randn(2, model.config.num_channels, height, width, generator=generator)}
    tokens = torch.randint(3, model.config.get_text_config().vocab_size, (2, 12), generator=generator)
    inputs = {"input_ids": tokens}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens[:, :7]
    return inputs


def main_result(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Call the model and return its main result: the last hidden state, or else its first output."""
    kind = next(p.dtype for p in model.parameters())
    arguments: dict[str, Any] = {k: v.to(kind) if v.is_floating_point() else v for k, v in inputs.items()}
    torch.manual_seed(0)
    outputs = model(**arguments)
    first = outputs.last_hidden_state if "last_hidden_state" in outputs else outputs[0]
    return first if isinstance(first, torch.Tensor) else first[0]


def _in_f64(model: Any) -> Any:
    """Return an f64 copy of the model; its experts use the eager implementation, as torch has no f64 grouped matmul."""
    wide = copy.deepcopy(model).double()
    with contextlib.suppress(AttributeError, ValueError):
        wide.set_experts_implementation("eager")
    return wide


def run(name: str, dtype: str) -> Row:
    """Run one architecture in this process."""
    library = importlib.import_module("transformers")
    torch.manual_seed(0)
    start = time.monotonic()
    try:
        with torch.no_grad():
            model, inputs, _ = small_model(library, name)
            model = model.to(TYPES[dtype])
            eager = main_result(model, inputs).double()
            exact = main_result(_in_f64(model), inputs)
    except Exception as problem:  # these settings alone cannot make some architectures small
        return Row(name, dtype, "eager", why=_one_line(problem))
    before = Counter(torch._dynamo.utils.counters["stats"])
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        try:
            ours = main_result(torch.compile(model, backend="mlcomp"), inputs).double()
        except Exception as problem:
            return Row(name, dtype, "error", time.monotonic() - start, _one_line(problem))
    seconds = time.monotonic() - start
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"] - before["unique_graphs"]
    fallbacks = "; ".join(_one_line(w.message) for w in caught if type(w.message).__name__ == "FallbackWarning")
    our_error, eager_error = (float((x - exact).abs().max()) for x in (ours, eager))
    allowed = 4 * eager_error + torch.finfo(TYPES[dtype]).eps * float(exact.abs().max())
    if not our_error <= allowed:
        return Row(
            name, dtype, "wrong", seconds, f"off by {our_error:.3g}, eager by {eager_error:.3g}; {fallbacks}", graphs
        )
    return Row(name, dtype, "parts" if fallbacks else "whole", seconds, fallbacks, graphs)


def _one_line(problem: object) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())}"[:600]


def _run_in_process(name: str, dtype: str) -> Row:
    """Run one architecture in a child process, since it may crash or hang."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_row, args=(sender, name, dtype))
    child.start()
    sender.close()
    try:
        row: Row = (
            receiver.recv() if receiver.poll(SECONDS) else Row(name, dtype, "error", SECONDS, "it did not end in time")
        )
    except EOFError:
        row = Row(name, dtype, "error", why="its process died")
    child.kill()
    child.join()
    print(
        f"{row.verdict:6} {row.seconds:5.1f} s  {row.graphs} graphs  {name} {dtype}  {row.why[:160]}", file=sys.stderr
    )
    return row


def _send_row(sender: Any, name: str, dtype: str) -> None:
    torch.set_num_threads(1)
    sender.send(run(name, dtype))


def page(rows: Sequence[Row]) -> str:
    """Return the report: verdict counts per dtype, then the architectures that are not `whole` with the reasons."""
    kinds = [t for t in TYPES if any(r.dtype == t for r in rows)]
    counts = [[t, *(sum(r.dtype == t and r.verdict == v for r in rows) for v in VERDICTS)] for t in kinds]
    bad = [[r.name, r.dtype, r.verdict, r.graphs, r.why.replace("|", "/")] for r in rows if r.verdict != "whole"]
    parts = [tables.table(counts, ["type", *VERDICTS])]
    return "\n\n".join([*parts, *([tables.table(bad, ["model", "type", "verdict", "graphs", "why"])] if bad else [])])


def main(words: Sequence[str] | None = None) -> int:
    """Run the chosen architectures and print the report; returns 1 if any is `wrong` or `error`."""
    parser = argparse.ArgumentParser(prog="python -m conformance.architectures", description=__doc__)
    parser.add_argument(
        "regex", nargs="?", default="", help="only architectures whose name matches this anywhere (default: all)"
    )
    parser.add_argument("--dtype", choices=tuple(TYPES), default="f32")
    parser.add_argument("--jobs", type=int, default=1, help="number of architectures at a time")
    options = parser.parse_args(words)
    importlib.import_module("transformers.models.auto.modeling_auto")
    names = [name for name in NAMES if re.search(options.regex, name)]
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(partial(_run_in_process, dtype=options.dtype), names))
    print(page(rows))
    return int(any(r.verdict in ("wrong", "error") for r in rows))


if __name__ == "__main__":
    raise SystemExit(main())
