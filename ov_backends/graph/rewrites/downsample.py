"""Attention on fewer keys: those of self-attention at the largest levels come from a smaller picture.

ToDo: Token Downsampling for Efficient Generation of High-Resolution Images (Smith, Saxena, Saha, 2024): queries stay as
they are, keys and values are taken from a picture of half the height and width, which quarters the work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .attention import attentions, projection

if TYPE_CHECKING:
    import openvino as ov

Shrink = Callable[["ov.Output", int], "ov.Output"]
"""A picture [batch, height, width, channels] and a factor -> the picture, so many times smaller in both directions."""


def average_keys(model: ov.Model, divisor: int) -> int:
    """Keys and values from the means of squares, so that they are of a picture `divisor` times smaller than the input.

    Levels that are smaller than the input already are shrunk by less, or not at all: 4 means squares of 4x4 where the
    tokens are the input's pixels, and of 2x2 where they are half as many in either direction.
    """
    return _downsample(model, divisor, _mean)


def thin_out_keys(model: ov.Model, divisor: int) -> int:
    """The same with the first of each square, as the paper does."""
    return _downsample(model, divisor, _first)


def _downsample(model: ov.Model, divisor: int, shrink: Shrink) -> int:
    levels: dict[int, tuple[int, int, int]] = {}
    for shape in (parameter.get_partial_shape() for parameter in model.get_parameters()):
        if len(shape) != 4 or shape.is_dynamic:
            continue
        height, width = shape[2].get_length(), shape[3].get_length()
        level = 1
        while level < divisor and height % divisor == 0 and width % divisor == 0:
            levels[height * width // level**2] = (height // level, width // level, divisor // level)
            level *= 2
    return sum(_shorten(attention, levels, shrink) for attention in attentions(model))


def _shorten(attention: ov.Node, levels: dict[int, tuple[int, int, int]], shrink: Shrink) -> bool:
    shapes = [value.get_partial_shape() for value in attention.input_values()[:2]]
    if not all(shape.is_static for shape in shapes):
        return False
    queries, keys = (shape[-2].get_length() for shape in shapes)
    nodes = [projection(attention.input_value(index)) for index in (1, 2)]
    if queries != keys or keys not in levels or any(node is None for node in nodes):
        return False
    made: dict[str, ov.Output] = {}
    for node in (node for node in nodes if node is not None):
        source = node.input_value(0)
        name = source.get_node().get_friendly_name()
        if name not in made:
            made[name] = _shrunk(source, levels[keys], shrink)
        node.input(0).replace_source_output(made[name])
        _free_length(node, keys)
    return True


def _shrunk(source: ov.Output, level: tuple[int, int, int], shrink: Shrink) -> ov.Output:
    """`source` [batch, height * width, channels] shrunk by `level`'s factor, and quantized again if it was."""
    from openvino import opset13 as ops

    height, width, factor = level
    node = source.get_node()
    is_quantized = node.get_type_name() == "FakeQuantize"
    tokens = node.input_value(0) if is_quantized else source
    batch, _, channels = tokens.get_shape()
    picture = ops.reshape(tokens, [batch, height, width, channels], False)
    smaller = shrink(picture.output(0), factor)
    fewer = ops.reshape(smaller, [batch, height * width // factor**2, channels], False)
    if not is_quantized:
        return fewer.output(0)
    return ops.fake_quantize(fewer, *node.input_values()[1:], node.get_attributes()["levels"]).output(0)


def _mean(picture: ov.Output, factor: int) -> ov.Output:
    from openvino import opset13 as ops

    planes = ops.transpose(picture, [0, 3, 1, 2])
    pooled = ops.avg_pool(planes, [factor] * 2, [0, 0], [0, 0], [factor] * 2, True)
    return ops.transpose(pooled, [0, 2, 3, 1]).output(0)


def _first(picture: ov.Output, factor: int) -> ov.Output:
    from openvino import opset13 as ops

    _, height, width, _ = picture.get_shape()
    return ops.slice(picture, [0, 0], [height, width], [factor] * 2, [1, 2]).output(0)


def _free_length(product: ov.Node, keys: int) -> None:
    """A Reshape behind `product` that names the number of tokens is told to work it out."""
    from openvino import opset13 as ops

    waiting = [product]
    while waiting:
        for target in waiting.pop().output(0).get_target_inputs():
            node = target.get_node()
            if node.get_type_name() == "FakeQuantize":
                waiting.append(node)
            elif node.get_type_name() == "Reshape":
                pattern = list(node.input_value(1).get_node().data)
                if keys in pattern:
                    pattern[pattern.index(keys)] = -1
                    node.input(1).replace_source_output(ops.constant(pattern, "i64").output(0))
