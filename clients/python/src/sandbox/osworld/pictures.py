"""Pictures: their sizes, and how alike they are."""

from __future__ import annotations

import warnings
from typing import Any

from .files import Unreadable, file, imported, name
from .rules import mapping

#: Of a picture that is unpacked.
PIXEL_LIMIT = 64_000_000

#: From which on two structures count as the same.
_ALIKE = 0.9

#: Side of the square that structures are compared in, as elsewhere.
_WINDOW = 7


def _open(value: Any, what: str = "result") -> Any:
    path = file(value, what)
    image = imported("PIL.Image", "pillow")
    image.MAX_IMAGE_PIXELS = PIXEL_LIMIT
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", image.DecompressionBombWarning)
            opened = image.open(path)
            opened.load()
            return opened
    except Exception as error:  # each format has its own
        raise Unreadable(f"{name(path)} is no picture: {error}") from None


def similarity(a: Any, b: Any) -> float:
    """The structural similarity of two grey pictures of one size: the mean over all squares of seven by seven."""
    np = imported("numpy", "numpy")
    x, y = (np.asarray(one.convert("L"), dtype=np.float64) for one in (a, b))
    if min(x.shape) < _WINDOW:
        return float(np.array_equal(x, y))
    count = _WINDOW * _WINDOW

    def mean(values: Any) -> Any:
        sums = np.pad(values, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
        n = _WINDOW
        return (sums[n:, n:] - sums[:-n, n:] - sums[n:, :-n] + sums[:-n, :-n]) / count

    mx, my = mean(x), mean(y)
    unbiased = count / (count - 1)
    vx, vy, both = ((mean(p * q) - m * n) * unbiased for p, q, m, n in ((x, x, mx, mx), (y, y, my, my), (x, y, mx, my)))
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    index = ((2 * mx * my + c1) * (2 * both + c2)) / ((mx**2 + my**2 + c1) * (vx + vy + c2))
    return float(index.mean())


def compare_images(result: Any, wanted: Any, reference_base_result: float | None = None, **_: Any) -> float:
    """At the size of the smaller one. With a base only what is better than it counts."""
    a, b = _open(result).convert("L"), _open(wanted, "expected").convert("L")
    size = min(a.size, b.size)
    lanczos = imported("PIL.Image", "pillow").Resampling.LANCZOS
    score = similarity(a.resize(size, lanczos), b.resize(size, lanczos))
    if reference_base_result is None:
        return max(score, 0.0)
    base = float(reference_base_result)
    return (score - base) / (1 - base) if base < 1 and score >= base + 0.01 else 0.0


def compare_image_list(result: Any, wanted: Any) -> float:
    """Pixel by pixel."""
    pairs = list(zip(result, wanted)) if isinstance(result, list) and isinstance(wanted, list) else [(result, wanted)]
    for one, other in pairs:
        a, b = _open(one), _open(other, "expected")
        if a.size != b.size or a.convert("RGBA").tobytes() != b.convert("RGBA").tobytes():
            return 0.0
    return 1.0


def check_image_size(result: Any, rules: Any) -> float:
    width, height = _open(result).size
    return float(mapping(rules).get("width", width) == width and rules.get("height", height) == height)


def check_structure_sim(result: Any, wanted: Any) -> float:
    a, b = _open(result), _open(wanted, "expected")
    return float(a.size == b.size and similarity(a, b) >= _ALIKE)


def check_image_mirror(result: Any, wanted: Any) -> float:
    """Whether the one is the other in a mirror that stands beside it."""
    a, b = _open(result), _open(wanted, "expected")
    flip = imported("PIL.Image", "pillow").Transpose.FLIP_LEFT_RIGHT
    return float(a.size == b.size and similarity(a.transpose(flip), b) >= 0.99)


def check_brightness_decrease_and_structure_sim(result: Any, wanted: Any, threshold: float = 0.03) -> float:
    """Darker than the other, and the same once both are equally bright."""
    np = imported("numpy", "numpy")
    enhance = imported("PIL.ImageEnhance", "pillow")
    a, b = _open(result).convert("RGB"), _open(wanted, "expected").convert("RGB")

    def brightness(picture: Any) -> float:
        return float(np.asarray(picture.convert("L"), dtype=np.float64).mean())

    if a.size != b.size or brightness(a) >= brightness(b):
        return 0.0
    def at_middle(picture: Any) -> Any:
        factor = 128 / max(brightness(picture), 1e-6)
        return np.asarray(enhance.Brightness(picture).enhance(factor), dtype=np.float64) / 255

    return float(((at_middle(a) - at_middle(b)) ** 2).mean() < threshold)
