"""The models that are timed, and what is asked of each (docs/performance.md)."""

import dataclasses
from typing import Optional, Sequence

# Settings that the shipped configurations of several ranks lack: one rank, bf16, no dropout.
_ONE_RANK_IN_BF16 = ("--set=parallel.tensor_model_parallel_size=1", "--set=parallel.pipeline_model_parallel_size=1",
                     "--set=precision.fp16=false", "--set=precision.bf16=true", "--set=model.hidden_dropout=0",
                     "--set=model.attention_dropout=0")


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str  # name of the shipped configuration, and of pytorch_gpu_speed.py's shape
    options: Sequence[str]
    batches: Sequence[int]  # samples of a micro-batch: the likely best first
    peer_seconds: int  # time to try PyTorch's batches; shapes with the most come first
    tokens_per_second: Optional[float] = None  # lower bound
    mfu: Optional[float] = None  # lower bound, with causal attention counted once
    llm_c: Optional[float] = None  # tokens/s of llm.c, as published
    ratio: float = 1.15  # lower bound of the rate relative to PyTorch compiled
    has_gelu: bool = True  # its products may compute GELU

    def arguments(self):
        return ["--config=" + self.name, *self.options]


# llm.c's rate is its own figure for an A100, 56 % of that GPU's peak; it has published none for
# this shape on a newer GPU.
SHAPES = (
    Shape("gpt3_857m", _ONE_RANK_IN_BF16, (16, 32, 8), 60, tokens_per_second=190e3),
    Shape("gpt_1664", (), (16, 8, 32), 45, tokens_per_second=92e3),
    Shape("gpt2_124m", ("--set=precision.bf16=true",), (32, 64, 16), 50, llm_c=218e3),
    Shape("llama_1500m", (), (16, 8, 4), 40, mfu=0.55, has_gelu=False),
)

# Options of the trainer that may make it faster and change no result beyond rounding, by name. Each is tried on the
# first shape; those that make it faster are taken for what follows. Graphs are last: what they save depends on the
# rest. Of two values of one setting, the later takes the place of the earlier. By default products compute the
# gradients of biases and, in backward, the derivative of GELU on Hopper and newer GPUs.
FUSED_GELU = "--set=system.fuse_gelu="
FUSED_BIAS_GRADIENTS = "--set=system.fuse_bias_gradients="
GRAPHS = "--set=system.cuda_graph_impl=local"
OPTIONS_TO_TRY = (
    ("attention_by_cudnn", ["--set=system.attention_backend=fused"]),
    ("separate_bias_gradients", [FUSED_BIAS_GRADIENTS + "false"]),
    ("separate_gelu", [FUSED_GELU + "none"]),
    ("fused_gelu", [FUSED_GELU + "both"]),
    ("logits_in_chunks", ["--set=train.logits_chunk_tokens=8192"]),
    ("cuda_graphs", [GRAPHS]),
)
