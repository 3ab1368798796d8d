"""Layers, models, training steps, optimizers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

from labelled.steps import Step, graph_of, randn

Cache = list[tuple[torch.Tensor, torch.Tensor]]


def training(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> Step:
    """A step that makes the outputs small."""

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def classifying(model: nn.Module, images: torch.Tensor, optimizer: torch.optim.Optimizer) -> Step:
    labels = torch.randint(0, 10, (len(images),), device=images.device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


# ---- perceptrons, optimizers ---------------------------------------------------------------------------------------


def mlp_train(device: torch.device, batch: int, width: int, hidden: int, graph: bool = False) -> Step:
    model = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    step = training(model, randn(device, batch, width), optimizer)
    return graph_of(step) if graph else step


def optimizer_only(
    device: torch.device, tensors: int, size: int, kind: str, graph: bool = False, name: str = "AdamW"
) -> Step:
    """One step of an optimizer over many parameters whose gradients stay."""
    params = [nn.Parameter(torch.randn(size, device=device)) for _ in range(tensors)]
    for p in params:
        p.grad = torch.randn_like(p)
    options = {"momentum": 0.9} if name == "SGD" else {"capturable": graph}
    made = getattr(torch.optim, name)(params, lr=1e-3, foreach=kind == "foreach", fused=kind == "fused", **options)
    return graph_of(made.step) if graph else made.step


# ---- transformers --------------------------------------------------------------------------------------------------


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Block(nn.Module):
    """A decoder's layer, as in Llama: RMSNorm, rotary attention, gated MLP."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate_up, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        cache: tuple[torch.Tensor, torch.Tensor] | None = None,
        at: int = 0,
    ) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.before_attention(x)).chunk(3, -1)
        )
        q, k = rotated(q, *turn), rotated(k, *turn)
        if cache is not None:
            cache[0][:, :, at : at + length], cache[1][:, :, at : at + length] = k, v
            k, v = (kept[:, :, : at + length] for kept in cache)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.gate_up(self.before_mlp(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class Decoder(nn.Module):
    """A small Llama: embedding, layers, head."""

    def __init__(self, layers: int, width: int, hidden: int, vocabulary: int, longest: int) -> None:
        super().__init__()
        self.heads = max(width // 128, 1)
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, self.heads, hidden) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        size = width // self.heads
        angle = torch.arange(longest)[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
        self.register_buffer("cos", torch.cat((angle, angle), -1).cos())
        self.register_buffer("sin", torch.cat((angle, angle), -1).sin())

    def cache(self, batch: int, length: int) -> Cache:
        weight = self.head.weight
        shape = (batch, self.heads, length, weight.shape[1] // self.heads)
        return [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in self.layers]

    def forward(self, tokens: torch.Tensor, cache: Cache | None = None, at: int = 0) -> torch.Tensor:
        x = self.embedding(tokens)
        turn = (self.cos[at : at + tokens.shape[1]], self.sin[at : at + tokens.shape[1]])
        for index, layer in enumerate(self.layers):
            x = layer(x, turn, None if cache is None else cache[index], at)
        return self.head(self.norm(x[:, -1]))


def decoder(
    device: torch.device, layers: int, width: int, hidden: int, vocabulary: int = 32000, longest: int = 4096
) -> Decoder:
    with device:
        return Decoder(layers, width, hidden, vocabulary, longest).to(torch.bfloat16).eval()


@contextlib.contextmanager
def decode(device: torch.device, layers: int, width: int, tokens: int) -> Iterator[Step]:
    """Generates token after token, greedily, with a key-value cache."""
    model = decoder(device, layers, width, 4 * width)
    prompt = torch.randint(0, 32000, (1, 64), device=device)
    cache = model.cache(1, 64 + tokens)

    def step() -> torch.Tensor:
        token = model(prompt, cache).argmax(-1, keepdim=True)
        for at in range(64, 64 + tokens - 1):
            token = model(token, cache, at).argmax(-1, keepdim=True)
        return token

    with torch.no_grad():
        yield step


@contextlib.contextmanager
def decode_graph(
    device: torch.device, layers: int, width: int, hidden: int, context: int, batch: int = 1, graph: bool = True
) -> Iterator[Step]:
    """One token for each of `batch` texts, behind `context` others; replayed as a graph."""
    model = decoder(device, layers, width, hidden)
    token = torch.randint(0, 32000, (batch, 1), device=device)
    cache = model.cache(batch, context + 1)

    def step() -> torch.Tensor:
        return model(token, cache, context).argmax(-1)

    with torch.no_grad():
        yield graph_of(step) if graph else step


@contextlib.contextmanager
def prefill(
    device: torch.device, layers: int, width: int, hidden: int, batch: int, length: int, longest: int = 4096
) -> Iterator[Step]:
    model = decoder(device, layers, width, hidden, longest=longest)
    tokens = torch.randint(0, 32000, (batch, length), device=device)

    def step() -> torch.Tensor:
        with torch.inference_mode():
            return model(tokens)

    yield step


def block_train(device: torch.device, batch: int, length: int, width: int, hidden: int) -> Step:
    with device:
        model = Block(width, max(width // 128, 1), hidden).to(torch.bfloat16)
    turn = tuple(randn(device, length, width // model.heads) for _ in range(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    x = randn(device, batch, length, width)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x, turn).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


class VisionTransformer(nn.Module):
    """ViT-B/16, or smaller; the mean over the patches is classified."""

    def __init__(self, layers: int, width: int, size: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.position = nn.Parameter(torch.zeros(1, (size // 16) ** 2, width))
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.layers(x)).mean(1))


def vit_train(device: torch.device, batch: int, layers: int = 12, width: int = 768, size: int = 224) -> Step:
    with device:
        model = VisionTransformer(layers, width, size).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return classifying(model, randn(device, batch, 3, size, size), optimizer)


# ---- mixtures of experts -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def experts(device: torch.device, tokens: int, width: int, hidden: int, count: int) -> Iterator[Step]:
    """Two experts of `count` for each token, one expert after the other, as they are first written."""
    router, x = randn(device, width, count), randn(device, tokens, width)
    first, second = randn(device, count, width, hidden), randn(device, count, hidden, width)

    def step() -> torch.Tensor:
        score, chosen = torch.softmax(x @ router, -1).topk(2)
        out = torch.zeros_like(x)
        for expert in range(count):
            row, place = torch.where(chosen == expert)
            found = functional.gelu(x[row] @ first[expert]) @ second[expert]
            out.index_add_(0, row, found * score[row, place, None])
        return out

    with torch.no_grad():
        yield step


@contextlib.contextmanager
def grouped_experts(device: torch.device, tokens: int, width: int, hidden: int, count: int) -> Iterator[Step]:
    """All experts' products in one call, tokens sorted by expert."""
    x = randn(device, tokens, width)
    weights = randn(device, count, hidden, width).transpose(-2, -1)
    ends = torch.arange(1, count + 1, device=device, dtype=torch.int32) * (tokens // count)
    with torch.no_grad():
        yield lambda: torch._grouped_mm(x, weights, offs=ends)


# ---- recurrent -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def lstm(device: torch.device, length: int, batch: int, width: int) -> Iterator[Step]:
    with device:
        model = nn.LSTM(width, width).to(torch.bfloat16)
    x = randn(device, length, batch, width)
    with torch.no_grad():
        yield lambda: model(x)


@contextlib.contextmanager
def lstm_cells(device: torch.device, length: int, batch: int, width: int, graph: bool = False) -> Iterator[Step]:
    """An LSTM as a loop in Python."""
    with device:
        cell = nn.LSTMCell(width, width)
    x = randn(device, length, batch, width, dtype="float32")

    def step() -> torch.Tensor:
        state = (torch.zeros_like(x[0]), torch.zeros_like(x[0]))
        for at in range(length):
            state = cell(x[at], state)
        return state[0]

    with torch.no_grad():
        yield graph_of(step) if graph else step


# ---- images, graphs ------------------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    def __init__(self, inside: int, middle: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, middle, 1, bias=False),
            nn.BatchNorm2d(middle),
            nn.ReLU(True),
            nn.Conv2d(middle, middle, 3, stride, 1, bias=False),
            nn.BatchNorm2d(middle),
            nn.ReLU(True),
            nn.Conv2d(middle, outside, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        project = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        self.short = nn.Identity() if inside == outside and stride == 1 else project

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.short(x), True)


def resnet50(width: int = 64, depths: tuple[int, ...] = (3, 4, 6, 3)) -> nn.Module:
    layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    inside = width
    for stage, depth in enumerate(depths):
        for index in range(depth):
            middle = width << stage
            layers.append(Bottleneck(inside, middle, 4 * middle, 2 if stage and not index else 1))
            inside = 4 * middle
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


@contextlib.contextmanager
def resnet(device: torch.device, batch: int, dtype: str = "float32", size: int = 224) -> Iterator[Step]:
    """ResNet-50 training, images made on the GPU. float32 without TF32; narrower types with the channels last."""
    layout = torch.contiguous_format if dtype == "float32" else torch.channels_last
    with device:
        model = resnet50().to(getattr(torch, dtype)).to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = randn(device, batch, 3, size, size, dtype=dtype).to(memory_format=layout)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield classifying(model, images, optimizer)


@contextlib.contextmanager
def aggregate(device: torch.device, nodes: int, edges: int, width: int) -> Iterator[Step]:
    """Each node gets the sum of what its neighbours have, along random edges."""
    x = randn(device, nodes, width, dtype="float32")
    source, target = (torch.randint(0, nodes, (edges,), device=device) for _ in range(2))
    with torch.no_grad():
        yield lambda: torch.zeros_like(x).index_add_(0, target, x[source])


def graph_network_train(device: torch.device, nodes: int, edges: int, width: int) -> Step:
    with device:
        layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
    x = randn(device, nodes, width, dtype="float32")
    source, target = (torch.randint(0, nodes, (edges,), device=device) for _ in range(2))
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        h = x
        for layer in layers:
            h = torch.relu(layer(torch.zeros_like(h).index_add(0, target, h[source])))
        loss = h.pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step
