"""What a step of a large transformer computes and sends: floating-point operations and bytes, from its shape.

The counts are those of Megatron-LM (Korthikanti et al. 2022, arXiv 2205.05198, appendix A): a token costs two
operations for each parameter that it uses, and four times sequence x width in each layer for attention; the backward
pass costs twice as much as the forward pass.
"""

from typing import NamedTuple

import msgspec

# Gradients, activations, keys and values are sent as bfloat16.
ITEM_BYTES = 2
_OPERATIONS_PER_PARAMETER = 2
_OPERATIONS_OF_ATTENTION = 4


class Transformer(msgspec.Struct, frozen=True):
    """The shape of a decoder: `kv_heads` share keys and values among `heads`; `ffn` is the width of the inner layer.

    A `gated` inner layer has three matrices, else two. A token uses `active` of `experts` inner layers. `tied`: one
    matrix of `vocabulary` x `width` serves both ends.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    gated: bool = False
    experts: int = 1
    active: int = 1
    tied: bool = True

    @property
    def _attention_parameters(self) -> int:
        """Those of a layer: queries and output, keys and values."""
        return 2 * self.width**2 + 2 * self.width * self.kv_width

    @property
    def _expert_parameters(self) -> int:
        return (3 if self.gated else 2) * self.width * self.ffn

    @property
    def kv_width(self) -> int:
        """The width of a token's keys, and of its values, in one layer."""
        return self.kv_heads * self.width // self.heads

    @property
    def embedding_parameters(self) -> int:
        """Those outside layers."""
        return (1 if self.tied else 2) * self.vocabulary * self.width

    def layer_parameters(self, experts: int) -> int:
        """Those of a layer with so many experts."""
        return self._attention_parameters + experts * self._expert_parameters

    @property
    def parameters(self) -> int:
        """All, without biases and norms."""
        return self.layers * self.layer_parameters(self.experts) + self.embedding_parameters

    @property
    def active_parameters(self) -> int:
        """Those that a token uses."""
        return self.layers * self.layer_parameters(self.active) + self.embedding_parameters

    def forward_operations(self, sequence: int) -> float:
        """Floating-point operations of one token in all layers, in a sequence of so many tokens."""
        in_layer = _OPERATIONS_PER_PARAMETER * self.layer_parameters(self.active)
        return self.layers * (in_layer + _OPERATIONS_OF_ATTENTION * sequence * self.width)

    def activation_bytes(self, tokens: int) -> int:
        """What a layer hands on for so many tokens."""
        return tokens * self.width * ITEM_BYTES

    def kv_bytes(self, tokens: int) -> int:
        """Keys and values of so many tokens, of all layers."""
        return 2 * tokens * self.layers * self.kv_width * ITEM_BYTES


# Megatron-LM's table 3 (arXiv 2205.05198), LLaMA's table 2 (arXiv 2302.13971), Mixtral's table 1 (arXiv 2401.04088).
MODELS = {
    "gpt-22b": Transformer(48, 6144, 64, 64, 4 * 6144, 51200),
    "gpt-175b": Transformer(96, 12288, 96, 96, 4 * 12288, 51200),
    "llama-7b": Transformer(32, 4096, 32, 32, 11008, 32000, gated=True, tied=False),
    "mixtral-8x7b": Transformer(32, 4096, 32, 8, 14336, 32000, gated=True, experts=8, active=2, tied=False),
}


class Accelerator(msgspec.Struct, frozen=True):
    """What a GPU computes and reads: its peak in operations/s, the share of it that is reached, and bytes/s of memory.

    Defaults are those of an H100 SXM by its data sheet, at the share that Megatron-LM reports.
    """

    peak_ops: float = 989e12
    efficiency: float = 0.45
    memory_bytes_s: float = 3.35e12

    def seconds(self, operations: float) -> float:
        """How long so many operations take."""
        return operations / (self.peak_ops * self.efficiency)


class Parallelism(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How ranks share a model: `tensor` ranks share each layer, `pipeline` stages share the layers, `data` replicas.

    `expert` ranks of the replicas share the experts of a layer.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.tensor * self.pipeline * self.data

    def problem(self, model: Transformer) -> str:
        """Why a model cannot be shared so; "" if it can."""
        if min(self.tensor, self.pipeline, self.data, self.expert) < 1:
            return "tensor, pipeline, data and expert must be at least 1"
        if model.heads % self.tensor:
            return f"{model.heads} heads cannot be shared by {self.tensor} tensor ranks; use a divisor"
        if model.layers % self.pipeline:
            return f"{model.layers} layers cannot be shared by {self.pipeline} stages; use a divisor"
        if self.data % self.expert or model.experts % self.expert:
            return f"{model.experts} experts on {self.data} replicas cannot be shared by {self.expert} expert ranks"
        return ""


class Pass(NamedTuple):
    """A rank's forward pass over one micro-batch: seconds of computing, and bytes that it sends or reduces.

    `tensor_bytes` are all-reduced twice a layer in all, `stage_bytes` go to the next stage, `expert_bytes` are
    exchanged by an all-to-all before and again after the experts. The backward pass computes twice as long and sends
    as much.
    """

    compute_s: float
    tensor_bytes: int
    stage_bytes: int
    expert_bytes: int


def forward_pass(
    model: Transformer, parallelism: Parallelism, sequences: int, sequence: int, accelerator: Accelerator
) -> Pass:
    """The pass over a micro-batch of `sequences`, each of `sequence` tokens."""
    tokens, layers = sequences * sequence, model.layers // parallelism.pipeline
    share = parallelism.tensor * parallelism.pipeline
    activations = model.activation_bytes(tokens)
    return Pass(
        accelerator.seconds(tokens * model.forward_operations(sequence) / share),
        2 * layers * activations if parallelism.tensor > 1 else 0,
        activations // parallelism.tensor if parallelism.pipeline > 1 else 0,
        layers * model.active * activations // parallelism.tensor if parallelism.expert > 1 else 0,
    )


class Gradients(NamedTuple):
    """The bytes that a rank reduces in a step: with all replicas, and with those that have the same experts."""

    shared_bytes: int
    expert_bytes: int


def gradients(model: Transformer, parallelism: Parallelism) -> Gradients:
    """Those of a rank's stage, without embeddings."""
    layers = model.layers // parallelism.pipeline
    everywhere = 0 if parallelism.expert > 1 else model.experts
    own_experts = 0 if everywhere else model.experts // parallelism.expert
    item_bytes = ITEM_BYTES * layers / parallelism.tensor
    experts = model.layer_parameters(own_experts) - model.layer_parameters(0)
    return Gradients(round(item_bytes * model.layer_parameters(everywhere)), round(item_bytes * experts))


def decode_seconds(model: Transformer, tensor: int, tokens: int, accelerator: Accelerator) -> float:
    """How long a rank computes for one more token of each sequence: it reads its parameters, and all `tokens` before.

    Decoding reads more than it computes; sequences in a batch share the reading of parameters.
    """
    read = ITEM_BYTES * model.active_parameters + model.kv_bytes(tokens)
    return read / tensor / accelerator.memory_bytes_s
