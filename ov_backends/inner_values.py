"""Values inside a model: what its operators give for an input, read by running it that far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from . import devices
from .errors import InferenceError, last_line
from .tensor_kinds import to_numpy

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov

T = TypeVar("T")


def read_values(
    model: ov.Model, outputs: Sequence[ov.Output], inputs: Mapping[str, np.ndarray], device: str = "CPU"
) -> list[np.ndarray]:
    """What `outputs`, outputs of operators of `model`, hold when it runs on `inputs` (input name -> array).

    The model runs as far as they need, and is compiled for that. In FP32 on the CPU, elsewhere as the device does by
    itself. Raises InferenceError.
    """
    import openvino as ov
    from openvino import opset13

    needed = _parameters(outputs)
    names = {name for parameter in needed for name in parameter.output(0).get_names()}
    part = ov.Model([opset13.result(output) for output in outputs], needed, f"{model.get_friendly_name()}, a part")
    properties = {"INFERENCE_PRECISION_HINT": "f32"} if device == "CPU" else devices.compile_properties(device)
    try:
        request = devices.core().compile_model(part, device, properties).create_infer_request()
        request.infer({name: array for name, array in inputs.items() if name in names})
    except RuntimeError as error:
        raise InferenceError(
            f"{model.get_friendly_name()} failed on {device} while values inside it were read: {last_line(error)}."
        ) from error
    return [to_numpy(request.get_output_tensor(number)) for number in range(len(outputs))]


def grouped(items: Iterable[T], size: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """`items` in order, in groups whose sizes add up to `limit` at most; what is larger alone is a group of its own."""
    group: list[T] = []
    total = 0
    for item in items:
        added = size(item)
        if group and total + added > limit:
            yield group
            group, total = [], 0
        group.append(item)
        total += added
    if group:
        yield group


def _parameters(outputs: Iterable[ov.Output]) -> list[ov.Node]:
    """The inputs of the model that `outputs` depend on; others would be in the way of some devices."""
    found, seen = [], set()
    waiting = [output.get_node() for output in outputs]
    while waiting:
        node = waiting.pop()
        if node.get_friendly_name() in seen:
            continue
        seen.add(node.get_friendly_name())
        if node.get_type_name() == "Parameter":
            found.append(node)
        waiting += [node.input_value(number).get_node() for number in range(node.get_input_size())]
    return found
