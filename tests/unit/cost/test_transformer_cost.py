"""What large transformers compute and send, against counts that their papers print."""

import pytest

from c4bench.cost.transformer import (
    MODELS,
    Accelerator,
    Gradients,
    Parallelism,
    Transformer,
    decode_seconds,
    forward_pass,
    gradients,
)

# Small enough to count by hand: attention has 4 x 8 x 8 = 256 parameters, an expert 2 x 8 x 32 = 512.
SMALL = Transformer(layers=2, width=8, heads=4, kv_heads=4, ffn=32, vocabulary=100)
EXPERTS = Transformer(layers=2, width=8, heads=4, kv_heads=4, ffn=32, vocabulary=100, experts=4, active=2)
ONE_PER_SECOND = Accelerator(peak_ops=1.0, efficiency=1.0, memory_bytes_s=1.0)


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [("gpt-22b", 22, 22), ("gpt-175b", 175, 175), ("llama-7b", 6.7, 6.7), ("mixtral-8x7b", 46.7, 12.9)],
)
def test_models_have_the_parameters_that_their_papers_say(name, billions, active):
    """The shape of each named model gives its published number of parameters, and of those that a token uses."""
    digits = 1 if isinstance(billions, float) else 0
    assert round(MODELS[name].parameters / 1e9, digits) == billions
    assert round(MODELS[name].active_parameters / 1e9, digits) == active


def test_a_step_has_the_operations_of_megatrons_formula():
    """Forward and backward cost 72 B s l h^2 (1 + s/6h) operations (arXiv 2205.05198, without the logits)."""
    model, sequences, sequence = MODELS["gpt-22b"], 4, 2048
    h, layers = 6144, 48
    expected = 72 * sequences * sequence * layers * h * h * (1 + sequence / (6 * h))
    forward = forward_pass(model, Parallelism(), sequences, sequence, ONE_PER_SECOND)
    assert 3 * forward.compute_s == pytest.approx(expected, rel=1e-12)


def test_what_a_pass_sends_follows_from_how_ranks_share_the_model():
    """Tensor groups reduce activations twice a layer, stages hand them on, and each active expert gets them."""
    alone = forward_pass(SMALL, Parallelism(), 1, 10, ONE_PER_SECOND)
    assert alone[1:] == (0, 0, 0)
    # 10 tokens x 8 x 2 bytes = 160.
    tensor = forward_pass(SMALL, Parallelism(tensor=2, pipeline=2), 1, 10, ONE_PER_SECOND)
    assert (tensor.tensor_bytes, tensor.stage_bytes, tensor.expert_bytes) == (2 * 1 * 160, 80, 0)
    assert tensor.compute_s == pytest.approx(alone.compute_s / 4)
    expert = forward_pass(EXPERTS, Parallelism(data=4, expert=2), 1, 10, ONE_PER_SECOND)
    assert (expert.tensor_bytes, expert.stage_bytes, expert.expert_bytes) == (0, 0, 2 * 2 * 160)


def test_gradients_of_experts_are_reduced_among_their_copies():
    """Attention is reduced by all replicas; an expert that a rank does not have is no gradient of its."""
    assert gradients(SMALL, Parallelism(tensor=2, data=2)) == Gradients(2 * 2 * (256 + 512) // 2, 0)
    assert gradients(EXPERTS, Parallelism(data=4)) == Gradients(2 * 2 * (256 + 4 * 512), 0)
    assert gradients(EXPERTS, Parallelism(data=4, expert=2)) == Gradients(2 * 2 * 256, 2 * 2 * 2 * 512)


def test_decoding_reads_the_parameters_and_all_tokens_before():
    """A token of each sequence takes as long as its ranks read: 2 bytes a parameter, keys and values of the context."""
    # 2 layers x 768 + 800 parameters; keys and values: 2 x 3 tokens x 2 layers x 8 x 2 bytes.
    assert decode_seconds(SMALL, 2, 3, ONE_PER_SECOND) == (2 * (2 * 768 + 800) + 192) / 2


@pytest.mark.parametrize(
    ("shared", "said"),
    [
        (Parallelism(tensor=3), "64 heads cannot be shared by 3 tensor ranks"),
        (Parallelism(pipeline=5), "48 layers cannot be shared by 5 stages"),
        (Parallelism(data=2, expert=2), "1 experts on 2 replicas cannot be shared by 2 expert ranks"),
        (Parallelism(data=0), "must be at least 1"),
        (Parallelism(tensor=8, pipeline=2, data=4), ""),
    ],
)
def test_what_cannot_be_shared_is_said(shared, said):
    """A way of sharing that does not divide the model names what does not divide."""
    problem = shared.problem(MODELS["gpt-22b"])
    assert said in problem
    assert bool(problem) == bool(said)
