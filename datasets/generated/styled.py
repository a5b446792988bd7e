"""Images made and altered: styles, roots of powers, gates over places, tones, mixed batches."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def _image(draw: Draw, channels: int) -> tuple[int, int, int, int]:
    """Batch, the channels, height and width."""
    most = max(4, int((draw.numel / channels) ** 0.5))
    high = min(most, draw.choice((4, 7, 8, 15, 16, 32, 33, 64, 100, 128, 256)))
    wide = high if draw.chance(0.6) else min(most, high + draw.between(1, high))
    return max(2, draw.numel // (channels * high * wide)), channels, high, wide


def stylised(draw: Draw) -> Program:
    """Instance statistics replaced by a style's vector, by another image's or a mixture: AdaIN."""
    shape = _image(draw, draw.choice((3, 16, 24, 32, 64, 128)))
    kind, strength = draw.choice(("vector", "image", "mixed")), draw.choice((1.0, 0.6))

    def run(x: Tensor, style: Tensor, share: Tensor, order: Tensor) -> Tensor:
        h = x.float()
        var, mean = torch.var_mean(h, (2, 3), keepdim=True)
        deviation = torch.sqrt(var + 1e-5)
        h = (h - mean) / deviation
        if kind == "vector":
            scale, shift = style[..., None, None].chunk(2, 1)
            return functional.leaky_relu(h.to(x.dtype) * (1 + scale) + shift, 0.2)
        if kind == "image":
            var, mean = torch.var_mean(style.float(), (2, 3), keepdim=True)
            h = functional.relu(h * torch.sqrt(var + 1e-5) + mean)
            return (strength * h + (1 - strength) * x).to(x.dtype)
        mean, old = mean.detach(), deviation.detach()
        deviation = share * old + (1 - share) * old[order]
        return functional.silu(h * deviation + share * mean + (1 - share) * mean[order]).to(x.dtype)

    sizes = (shape[0], 2 * shape[1]) if kind == "vector" else shape
    given = draw.tensor(sizes, grad=draw.training and kind != "mixed")
    share = torch.sigmoid(draw.tensor((shape[0], 1, 1, 1), grad=False)).float()
    args = (draw.image(shape, turned=draw.chance(0.4)), given, share)
    order = torch.randperm(shape[0], generator=draw.generator)
    return Program(run, (*args, order), draw.training)


def synthesis(draw: Draw) -> Program:
    """Around a styled convolution: demodulation, noise by pixel, bias, gain, a small blur."""
    batch, channels, high, wide = _image(draw, draw.choice((8, 16, 32, 48, 64)))
    size = 3 if channels * 2 <= high * wide else 1
    unit, taps = draw.chance(0.4), draw.choice(((1,), (1, 2, 1), (1, 3, 3, 1)))

    def run(x: Tensor, w: Tensor, style: Tensor, noise: Tensor, bias: Tensor) -> Tensor:
        s = style * torch.rsqrt(style.square().mean(1, keepdim=True) + 1e-6) if unit else style + 1
        scaled = w.float() * s[:, None, :, None, None].float()
        factor = torch.rsqrt(scaled.square().sum((2, 3, 4)) + 1e-6).to(x.dtype)
        h = x * factor[..., None, None]
        if taps[1:]:
            h = functional.pad(h, (1, len(taps) - 2, 1, len(taps) - 2))
            h = torch.stack([h[..., i : i + wide] * t for i, t in enumerate(taps)]).sum(0)
            h = torch.stack([h[:, :, i : i + high] * t for i, t in enumerate(taps)]).mean(0) / 9
        h = functional.leaky_relu(h + noise * bias[0] + bias[:, None, None], 0.2)
        return (h * 2**0.5).clamp(-256, 256)

    x = draw.image((batch, channels, high, wide), turned=draw.chance(0.4))
    weight, style = draw.tensor((channels, channels, size, size)), draw.tensor((batch, channels))
    noise = draw.tensor((batch, 1, high, wide), grad=False)
    return Program(run, (x, weight, style, noise, draw.tensor((channels,))), draw.training)


def rooted(draw: Draw) -> Program:
    """Powers and roots: local response norm, generalised means of pixels, signed roots, norms."""
    shape = _image(draw, draw.choice((6, 16, 64, 96, 130, 256)))
    kind, size = draw.choice(("response", "response", "means", "signed")), draw.choice((3, 5))

    def run(x: Tensor, p: Tensor) -> Tensor:
        h = functional.relu(x).float()
        if kind == "response":
            squares = functional.pad(h.square(), (0, 0, 0, 0, size // 2, size // 2))
            near = torch.stack([squares[:, i : i + shape[1]] for i in range(size)]).sum(0)
            return (h / (1.0 + p.abs() * near / size).pow(0.75)).to(x.dtype)
        if kind == "means":
            by = 1 + functional.softplus(p.float())
            pooled = h.clamp(min=1e-3).pow(by).mean((2, 3)).pow(1 / by)
        else:
            pooled = (x.float() * p).sum((2, 3))
            pooled = pooled.sign() * torch.sqrt(pooled.abs() + 1e-5)
        return functional.normalize(pooled, dim=1).to(x.dtype)

    return Program(
        run, (draw.image(shape, turned=draw.chance(0.4)), draw.tensor((1,))), draw.training
    )


def spatial_gating(draw: Draw) -> Program:
    """Tokens gated by what lies elsewhere: one half of the channels mixed over places: gMLP."""
    halves, width = draw.chance(0.5), draw.choice((16, 48, 64, 96, 192))
    length = min(draw.choice((16, 49, 64, 100, 196)), max(4, draw.numel // (2 * width)))
    batch = max(1, draw.numel // (2 * width * length))

    def run(x: Tensor, w: Tensor, bias: Tensor, gain: Tensor) -> Tensor:
        if halves:
            u, v = functional.gelu(x).chunk(2, -1)
            v = functional.layer_norm(v, (width,), gain[:width])
            return u * (torch.matmul(w, v) + bias[:, None] + 1)
        h = functional.layer_norm(x, (2 * width,), gain).transpose(1, 2)
        h = functional.gelu(h * bias + h.mean(-1, keepdim=True))
        return x + torch.sigmoid(h.transpose(1, 2) * gain) * x.mean(1, keepdim=True)

    w = draw.tensor((length, length), grad=draw.training and halves)
    args = (draw.tensor((batch, length, 2 * width)), w, draw.tensor((length,)))
    return Program(run, (*args, draw.tensor((2 * width,))), draw.training)


def tones(draw: Draw) -> Program:
    """One to three changes of colour in a row: saturation, hue, film curves, contrast."""
    (batch, _, high, wide), byte, low = _image(draw, 3), draw.chance(0.4), 0.04
    steps = [draw.choice(("luma", "hue", "curve", "contrast")) for _ in range(draw.between(1, 3))]

    def changed(kind: str, rgb: Tensor, by: Tensor) -> Tensor:
        r, g, b = rgb.unbind(1)
        gray = 0.299 * r + 0.587 * g + 0.114 * b
        if kind == "luma":
            blue, red = ((b - gray) * 0.564 * by[0], (r - gray) * 0.713 * by[1])
            both = gray - 0.714 * red - 0.344 * blue
            return torch.stack((gray + 1.403 * red, both, gray + 1.773 * blue), 1)
        if kind == "hue":
            top, least = rgb.amax(1), rgb.amin(1)
            span = top - least + 1e-6
            hue = torch.where(top == r, (g - b) / span, 2 + (b - r) / span)
            hue = torch.where(top == b, 4 + (r - g) / span, hue)
            at = torch.stack([torch.remainder(hue + by[2] + n, 6.0) for n in (5, 3, 1)], 1)
            part = torch.minimum(at, 4 - at).clamp(0, 1)
            return top[:, None] - span[:, None] * part
        if kind == "curve":
            x = torch.where(rgb <= low, rgb / 12.92, ((rgb.clamp(min=0) + 0.055) / 1.055) ** 2.4)
            return x * by[0] * (2.51 * x + 0.03) / (x * (2.43 * x + 0.59) + 0.14)
        return gray.mean((1, 2))[:, None, None, None].lerp(rgb, by[1])

    def run(image: Tensor, by: Tensor) -> Tensor:
        h = image.permute(0, 3, 1, 2).float() / 255 if byte else image.float()
        for kind in steps:
            h = changed(kind, h, by).clamp(0, 1)
        return (h * 255).round().to(torch.uint8) if byte else h.to(image.dtype)

    shape = (batch, high, wide, 3) if byte else (batch, 3, high, wide)
    image = torch.sigmoid(draw.tensor(shape, grad=False))
    by = draw.tensor((3,), dtype=torch.float32, grad=False, positive=True)
    return Program(run, ((image * 255).to(torch.uint8) if byte else image, by))


def mixed_batches(draw: Draw) -> Program:
    """Samples mixed with others of the batch or parts of them cut out, and so their labels."""
    batch, channels, high, wide = _image(draw, draw.choice((1, 3, 3, 12)))
    kind = draw.choice(("mixup", "cut", "erased"))
    classes = min(draw.choice((10, 100, 1000)), 2 * channels * high * wide)
    each, smooth = draw.chance(0.5), draw.choice((0.0, 0.1))

    def run(x: Tensor, label: Tensor, order: Tensor, share: Tensor, at: Tensor) -> list[Tensor]:
        known = torch.arange(classes, device=x.device) == label[:, None]
        wanted = known.float() * (1 - smooth) + smooth / classes
        part = share[:, None, None, None]
        if kind == "mixup":
            y = x * part + (x[order] if each else x.flip(0)) * (1 - part)
        else:
            rows, columns = (torch.arange(n, device=x.device) for n in (high, wide))
            half = torch.sqrt(1 - part[:, 0]) / 2
            box = (rows[:, None] - at[:, :1, None] % high).abs() < half * high
            box = box & ((columns - at[:, 1:, None] % wide).abs() < half * wide)
            part = 1 - box.float().mean((1, 2))[:, None, None, None]
            other = x[order] if kind == "cut" else x.mean((2, 3), keepdim=True)
            y = torch.where(box[:, None], other, x)
        mixed = part[:, 0, 0] * wanted + (1 - part[:, 0, 0]) * wanted[order]
        return [y.to(x.dtype), wanted if kind == "erased" else mixed]

    order = torch.randperm(batch, generator=draw.generator)
    share = torch.sigmoid(draw.tensor((batch if each else 1,), dtype=torch.float32, grad=False))
    x = draw.image((batch, channels, high, wide), grad=False, turned=draw.chance(0.4))
    args = (x, draw.indices((batch,), classes), order, share.expand(batch))
    return Program(run, (*args, draw.indices((batch, 2), 512)))


#: Every family here.
FAMILIES = (stylised, synthesis, rooted, spatial_gating, tones, mixed_batches)
