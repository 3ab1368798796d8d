"""Models from transformers, built from configurations: nothing is downloaded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

Step = Callable[[], Any]


def made(device: torch.device, model_class: Any, config: Any) -> Any:
    """The model in bfloat16 on a GPU, else in float32."""
    torch.manual_seed(0)
    with device:
        model = model_class(config)
    return model.to(torch.bfloat16 if device.type == "cuda" else torch.float32)


def training(model: Any, batch: dict[str, torch.Tensor], clip: float | None = None, groups: Any = None) -> Step:
    """Loss of the model, backward, AdamW; with `clip`, gradients are clipped as in most training loops."""
    model.train()
    adamw = torch.optim.AdamW(groups or model.parameters(), lr=1e-5, fused=True)

    def step() -> torch.Tensor:
        adamw.zero_grad(set_to_none=True)
        loss: torch.Tensor = model(**batch).loss
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        adamw.step()
        return loss.detach()

    return step


def texts(device: torch.device, vocabulary: int, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Random tokens, as inputs and as labels."""
    tokens = torch.randint(vocabulary, (batch, length), device=device)
    return {"input_ids": tokens, "labels": tokens}


def decoder_sizes(layers: int, width: int, hidden: int, heads: int, vocabulary: int, length: int) -> dict[str, Any]:
    """What Llama, Qwen2 and Mixtral call them."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": max(heads // 4, 1),
        "vocab_size": vocabulary,
        "max_position_embeddings": length,
        "use_cache": False,
    }


def llama(
    device: torch.device, batch: int, length: int, vocabulary: int, checkpointed: bool = False, **sizes: int
) -> tuple[Any, dict[str, torch.Tensor]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**decoder_sizes(**sizes, vocabulary=vocabulary, length=length))
    model = made(device, LlamaForCausalLM, config)
    if checkpointed:
        # Renamed in transformers 5.2x.
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
    return model, texts(device, vocabulary, batch, length)


def llama_train(device: torch.device, **sizes: Any) -> Step:
    model, batch = llama(device, **sizes)
    return training(model, batch, clip=1.0)


def llama_compiled(device: torch.device, **sizes: Any) -> Step:
    """The whole model is one compiled function."""
    model, batch = llama(device, **sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    compiled = torch.compile(model.train())

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = compiled(**batch).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def qwen2_layers_compiled(device: torch.device, batch: int, length: int, vocabulary: int, **sizes: int) -> Step:
    """Each layer is compiled by itself, as training frameworks do: it compiles once."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(**decoder_sizes(**sizes, vocabulary=vocabulary, length=length))
    model = made(device, Qwen2ForCausalLM, config)
    for layer in model.model.layers:
        layer.compile()
    return training(model, texts(device, vocabulary, batch, length))


def mixtral_train(
    device: torch.device, batch: int, length: int, vocabulary: int, experts: int, per_token: int, **sizes: int
) -> Step:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        **decoder_sizes(**sizes, vocabulary=vocabulary, length=length),
        num_local_experts=experts,
        num_experts_per_tok=per_token,
    )
    return training(made(device, MixtralForCausalLM, config), texts(device, vocabulary, batch, length), clip=1.0)


def gpt2(device: torch.device, batch: int, length: int, vocabulary: int, layers: int, width: int, heads: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocabulary, n_positions=length, use_cache=False
    )
    return made(device, GPT2LMHeadModel, config), texts(device, vocabulary, batch, length)


def gpt2_train(device: torch.device, **sizes: int) -> Step:
    model, batch = gpt2(device, **sizes)
    return training(model, batch, clip=1.0)


@contextlib.contextmanager
def gpt2_parallel(device: torch.device, **sizes: int) -> Iterator[Step]:
    """The same in DistributedDataParallel, on the ranks of torchrun."""
    model, batch = gpt2(device, **sizes)
    own_gpu = device.type == "cuda" and dist.get_backend() == "nccl"
    parallel = nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if own_gpu else None)
    yield training(parallel, batch)


def bert_train(
    device: torch.device, batch: int, length: int, vocabulary: int, layers: int, width: int, heads: int
) -> Step:
    """Masked tokens; weight decay for the matrices only, so that the optimizer has two groups."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=heads,
        vocab_size=vocabulary,
        max_position_embeddings=length,
    )
    model = made(device, BertForMaskedLM, config)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    tokens = torch.randint(vocabulary, (batch, length), device=device)
    hidden = torch.rand(batch, length, device=device) < 0.85  # the loss is of one token in seven
    labels = torch.where(hidden, -100, tokens)
    return training(model, {"input_ids": tokens, "labels": labels}, groups=groups)


def t5_train(
    device: torch.device, batch: int, length: int, vocabulary: int, layers: int, width: int, heads: int
) -> Step:
    """An encoder and a decoder with layers of their own."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        num_layers=layers,
        num_decoder_layers=layers,
        d_model=width,
        d_kv=width // heads,
        d_ff=4 * width,
        num_heads=heads,
        vocab_size=vocabulary,
        decoder_start_token_id=0,
        use_cache=False,
    )
    return training(made(device, T5ForConditionalGeneration, config), texts(device, vocabulary, batch, length))


@contextlib.contextmanager
def whisper(device: torch.device, batch: int, tokens: int, layers: int, width: int, heads: int) -> Iterator[Step]:
    """Half a minute of sound for each text, forward alone."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        encoder_layers=layers,
        decoder_layers=layers,
        d_model=width,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        use_cache=False,
    )
    model = made(device, WhisperForConditionalGeneration, config).eval()
    sound = torch.randn(batch, config.num_mel_bins, 3000, device=device, dtype=model.dtype)
    text = torch.randint(config.vocab_size, (batch, tokens), device=device)
    with torch.inference_mode():
        yield lambda: model(input_features=sound, decoder_input_ids=text).logits
