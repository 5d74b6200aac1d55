"""Submodels of this process, kept so that the next prompt finds them compiled."""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import lru_cache

from ..compiler.cache import CompileCache, default_limit_bytes, default_root
from ..compiler.ir import Source
from ..plan import SubmodelPlan
from .submodel import Submodel

MAX_SUBMODELS = 8
"""Two whole models (text encoder, UNet, VAE decoder, VAE encoder); the least recently used go first."""


class SubmodelStore:
    """Submodels by weights, plan and policy."""

    def __init__(self, cache: CompileCache):
        self.cache = cache
        self._submodels: OrderedDict[tuple, Submodel] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, source: Source, plan: SubmodelPlan, policy: str, static: bool = True) -> Submodel:
        """The submodel for `source` under `plan`, made when first asked for."""
        key = (source.submodel, source.architecture, source.weights, plan, policy, static)
        with self._lock:
            if key not in self._submodels:
                self._submodels[key] = Submodel(source, plan, policy, self.cache, static)
            self._submodels.move_to_end(key)
            while len(self._submodels) > MAX_SUBMODELS:
                self._submodels.popitem(last=False)
            return self._submodels[key]

    def release(self, weights: str) -> None:
        """Drop everything compiled from `weights`."""
        with self._lock:
            for key in [k for k in self._submodels if k[2] == weights]:
                del self._submodels[key]


@lru_cache(maxsize=1)
def store() -> SubmodelStore:
    """The store of this process over the user's cache."""
    return SubmodelStore(CompileCache(default_root(), default_limit_bytes()))
