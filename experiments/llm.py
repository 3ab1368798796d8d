"""A causal language model from transformers (Llama architecture) with random weights: prefill, decoding, training."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from shared import check_choice, check_least, compiled, dtype_of

PHASES = ("prefill", "decode", "train")
CACHES = ("dynamic", "static")


@contextlib.contextmanager
def build(
    device: torch.device,
    phase: str,
    cache: str,
    batch: int,
    tokens: int,
    layers: int,
    hidden: int,
    heads: int,
    vocab: int,
    capturable: bool,
    dtype: str,
    compile: str,
    seed: int,
) -> Iterator[Callable[[], torch.Tensor]]:
    """Yield the step of one phase: a whole prompt of `tokens`, one token after such a prompt, or a training step."""
    check_choice("phase", phase, PHASES)
    check_choice("cache", cache, CACHES)
    check_least(1, batch=batch, tokens=tokens, layers=layers, hidden=hidden, heads=heads)
    check_least(2, vocab=vocab)
    check_least(0, seed=seed)
    if hidden % (2 * heads):
        raise ValueError(f"hidden={hidden} is not allowed with heads={heads}; it must be a multiple of 2 * heads")
    torch.manual_seed(seed)
    model = make_model(device, dtype, layers=layers, hidden=hidden, heads=heads, vocab=vocab, longest=tokens + 8)
    prompt = torch.randint(vocab, (batch, tokens), device=device)
    if phase == "train":
        step = training(model, prompt, compile, capturable=capturable and device.type == "cuda")
        yield _with_tokens(step, batch * tokens)
        return
    with torch.no_grad():
        if phase == "prefill":
            yield _with_tokens(prefill(model, prompt, compile), batch * tokens)
        else:
            yield _with_tokens(decode(model, prompt, compile, cache), batch)


def _with_tokens(step: Callable[[], torch.Tensor], tokens: int) -> Callable[[], torch.Tensor]:
    step.tokens_per_step = tokens  # type: ignore[attr-defined]
    return step


def make_model(
    device: torch.device, dtype: str, *, layers: int, hidden: int, heads: int, vocab: int, longest: int
) -> Any:
    """Build the model from a configuration; nothing is downloaded."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise RuntimeError("llm needs the package transformers: pip install transformers") from error
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=-(-8 * hidden // 3 // 64) * 64,  # Llama's 8/3, in whole tiles
        num_attention_heads=heads,
        num_key_value_heads=heads,
        vocab_size=vocab,
        max_position_embeddings=longest,
    )
    with torch.device(device):
        return LlamaForCausalLM(config).to(dtype_of(dtype)).eval()


def prefill(model: Any, prompt: torch.Tensor, mode: str) -> Callable[[], torch.Tensor]:
    """Process all tokens of the prompt at once; returns the logits of the last."""
    run = compiled(model, mode)

    def step() -> torch.Tensor:
        logits: torch.Tensor = run(input_ids=prompt, use_cache=False, logits_to_keep=1).logits
        return logits

    return step


def decode(model: Any, prompt: torch.Tensor, mode: str, kind: str) -> Callable[[], torch.Tensor]:
    """Process one token after the prompt, whose keys and values are cached. Every step is at the same position."""
    from transformers import DynamicCache, StaticCache

    tokens = prompt.shape[1]
    static = kind == "static"
    cache = StaticCache(config=model.config, max_cache_len=tokens + 8) if static else DynamicCache(config=model.config)
    named = inspect.signature(type(model).forward).parameters
    cached = {"cache" if "cache" in named else "past_key_values": cache}  # renamed in transformers 5.2x
    model(input_ids=prompt, use_cache=True, logits_to_keep=1, **cached)
    lengths = [layer.cumulative_length for layer in cache.layers] if static else []
    token = prompt[:, -1:].clone()
    position = torch.full_like(token, tokens)
    run = compiled(model, mode)

    def step() -> torch.Tensor:
        logits: torch.Tensor = run(input_ids=token, position_ids=position, use_cache=True, **cached).logits
        if static:
            torch._foreach_sub_(lengths, 1)  # on the device, so that a CUDA graph includes it
        else:
            cache.crop(-1)
        return logits

    if not static:
        step.not_capturable = "a dynamic cache grows: use cache=static"  # type: ignore[attr-defined]
    return step


def training(model: Any, prompt: torch.Tensor, mode: str, *, capturable: bool) -> Callable[[], torch.Tensor]:
    """Next-token loss, backward pass, fused AdamW."""
    model.train()
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True, capturable=capturable)
    run = compiled(model, mode)

    def step() -> torch.Tensor:
        adamw.zero_grad(set_to_none=True)
        loss: torch.Tensor = run(input_ids=prompt, labels=prompt, use_cache=False).loss
        loss.backward()
        adamw.step()
        return loss.detach()

    return step
