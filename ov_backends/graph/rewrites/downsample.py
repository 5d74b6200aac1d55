"""Attention on fewer keys: those of self-attention at the largest level come from a picture of half the size.

ToDo: Token Downsampling for Efficient Generation of High-Resolution Images (Smith, Saxena, Saha, 2024): queries stay as
they are, keys and values are taken from a picture of half the height and width, which quarters the work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .attention import attentions, projection

if TYPE_CHECKING:
    import openvino as ov


def average_keys(model: ov.Model) -> int:
    """Keys and values from the mean of each 2x2 square; changes attentions whose tokens are the input's pixels."""
    return _downsample(model, _mean)


def thin_out_keys(model: ov.Model) -> int:
    """Keys and values from the first of each 2x2 square, as the paper does."""
    return _downsample(model, _first)


def _downsample(model: ov.Model, shrink: Callable[[ov.Output], ov.Output]) -> int:
    sizes = [p.get_partial_shape() for p in model.get_parameters() if len(p.get_partial_shape()) == 4]
    pictures = {
        (size[2].get_length() * size[3].get_length()): (size[2].get_length(), size[3].get_length())
        for size in sizes
        if size.is_static and size[2].get_length() % 2 == 0 and size[3].get_length() % 2 == 0
    }
    return sum(_shorten(attention, pictures, shrink) for attention in attentions(model))


def _shorten(
    attention: ov.Node, pictures: dict[int, tuple[int, int]], shrink: Callable[[ov.Output], ov.Output]
) -> bool:
    shapes = [value.get_partial_shape() for value in attention.input_values()[:2]]
    if not all(shape.is_static for shape in shapes):
        return False
    queries, keys = (shape[-2].get_length() for shape in shapes)
    nodes = [projection(attention.input_value(index)) for index in (1, 2)]
    if queries != keys or keys not in pictures or any(node is None for node in nodes):
        return False
    height, width = pictures[keys]
    made: dict[str, ov.Output] = {}
    for node in (node for node in nodes if node is not None):
        source = node.input_value(0)
        name = source.get_node().get_friendly_name()
        if name not in made:
            made[name] = _shrunk(source, height, width, shrink)
        node.input(0).replace_source_output(made[name])
        _free_length(node, keys)
    return True


def _shrunk(source: ov.Output, height: int, width: int, shrink: Callable[[ov.Output], ov.Output]) -> ov.Output:
    """`source` [batch, height * width, channels] shrunk to a quarter of the tokens, and quantized again if it was."""
    from openvino import opset13 as ops

    node = source.get_node()
    is_quantized = node.get_type_name() == "FakeQuantize"
    tokens = node.input_value(0) if is_quantized else source
    batch, _, channels = tokens.get_shape()
    picture = ops.reshape(tokens, [batch, height, width, channels], False)
    fewer = ops.reshape(shrink(picture.output(0)), [batch, height * width // 4, channels], False)
    if not is_quantized:
        return fewer.output(0)
    return ops.fake_quantize(fewer, *node.input_values()[1:], node.get_attributes()["levels"]).output(0)


def _mean(picture: ov.Output) -> ov.Output:
    from openvino import opset13 as ops

    planes = ops.transpose(picture, [0, 3, 1, 2])
    pooled = ops.avg_pool(planes, [2, 2], [0, 0], [0, 0], [2, 2], True)
    return ops.transpose(pooled, [0, 2, 3, 1]).output(0)


def _first(picture: ov.Output) -> ov.Output:
    from openvino import opset13 as ops

    _, height, width, _ = picture.get_shape()
    return ops.slice(picture, [0, 0], [height, width], [2, 2], [1, 2]).output(0)


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
