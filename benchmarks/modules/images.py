"""Models of images: from timm and torchvision, without weights, and one written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Step = Callable[[], Any]


def classifying(
    model: nn.Module, device: torch.device, optimizer: torch.optim.Optimizer, batch: int, size: int
) -> Step:
    """A training step under autocast, as these models are mostly trained: the weights stay float32."""
    images = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch,), device=device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss: torch.Tensor = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def vit_train(device: torch.device, name: str, batch: int, size: int, **sizes: int) -> Step:
    """`name`: one of timm's vision transformers; `sizes` are instead of its own."""
    import timm

    model = timm.create_model(name, pretrained=False, img_size=size, **sizes).to(device)
    return classifying(model, device, torch.optim.AdamW(model.parameters(), fused=True), batch, size)


def resnet_train(device: torch.device, name: str, batch: int, size: int) -> Step:
    import torchvision

    model = getattr(torchvision.models, name)(weights=None).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    return classifying(model, device, optimizer, batch, size)


def _generator(width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    inside = 100
    for index, outside in enumerate((8 * width, 4 * width, 2 * width, width)):
        layers += [nn.ConvTranspose2d(inside, outside, 4, 2 if index else 1, 1 if index else 0, bias=False)]
        layers += [nn.BatchNorm2d(outside), nn.ReLU(True)]
        inside = outside
    return nn.Sequential(*layers, nn.ConvTranspose2d(inside, 3, 4, 2, 1, bias=False), nn.Tanh())


def _discriminator(width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    inside = 3
    for outside in (width, 2 * width, 4 * width, 8 * width):
        layers += [nn.Conv2d(inside, outside, 4, 2, 1, bias=False), nn.BatchNorm2d(outside), nn.LeakyReLU(0.2, True)]
        inside = outside
    return nn.Sequential(*layers, nn.Conv2d(inside, 1, 4, 1, 0, bias=False), nn.Flatten(0))


def gan_train(device: torch.device, batch: int, width: int) -> Step:
    """DCGAN on images of 64 x 64: a step of the discriminator, then one of the generator, each with its optimizer."""
    generator, discriminator = _generator(width).to(device), _discriminator(width).to(device)
    makes, tells = (
        torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (generator, discriminator)
    )
    images = torch.randn(batch, 3, 64, 64, device=device)
    ones, zeros = torch.ones(batch, device=device), torch.zeros(batch, device=device)

    def judged(images: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return functional.binary_cross_entropy_with_logits(discriminator(images), wanted)

    def step() -> torch.Tensor:
        noise = torch.randn(batch, 100, 1, 1, device=device)
        made = generator(noise)
        tells.zero_grad()
        (judged(images, ones) + judged(made.detach(), zeros)).backward()
        tells.step()
        makes.zero_grad()
        loss = judged(made, ones)
        loss.backward()
        makes.step()
        return loss.detach()

    return step
