"""The library of rewrites: name -> a function that changes a graph for the better, exactly or nearly.

What each gains on which NPU is measured by benchmarks/npu; benchmarks/npu/LOG.md has the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..errors import UseError
from .rewrites.downsample import average_keys, thin_out_keys
from .rewrites.geglu import split_geglu
from .rewrites.scales import fold_scales
from .rewrites.text_keys import hoist_text_keys

if TYPE_CHECKING:
    import openvino as ov


@dataclass(frozen=True)
class Rewrite:
    """apply: changes the model in place and returns the number of places that it changed."""

    name: str
    apply: Callable[[ov.Model], int]


class ExactRewrite(Rewrite):
    """The output stays the same but for rounding."""


class ApproximateRewrite(Rewrite):
    """The output changes: something is left out. Never without being asked for."""


REWRITES: Mapping[str, Rewrite] = {
    one.name: one
    for one in (
        ExactRewrite("split-geglu", split_geglu),
        ExactRewrite("fold-scales", fold_scales),
        ExactRewrite("hoist-text-keys", hoist_text_keys),
        ApproximateRewrite("average-keys-2", partial(average_keys, divisor=2)),
        ApproximateRewrite("average-keys-4", partial(average_keys, divisor=4)),
        ApproximateRewrite("thin-out-keys-2", partial(thin_out_keys, divisor=2)),
    )
}


@dataclass(frozen=True)
class Rewritten:
    """places: name of a rewrite -> how many places it changed; 0 says that it found nothing to do."""

    model: ov.Model
    places: Mapping[str, int]

    @property
    def is_exact(self) -> bool:
        return all(isinstance(REWRITES[name], ExactRewrite) for name, count in self.places.items() if count)


def rewrite(model: ov.Model, names: Iterable[str]) -> Rewritten:
    """A clone of `model`, which shares its weights, with the rewrites `names` applied in this order.

    UseError: a name is not known.
    """
    chosen = list(names)
    unknown = [name for name in chosen if name not in REWRITES]
    if unknown:
        raise UseError(f"There is no rewrite '{unknown[0]}'; there are {', '.join(REWRITES)}.")
    changed, places = model.clone(), {}
    for name in chosen:
        places[name] = REWRITES[name].apply(changed)
        changed.validate_nodes_and_infer_types()
    return Rewritten(changed, places)
