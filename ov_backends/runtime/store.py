"""Submodels of this process, kept so that the next prompt finds them compiled."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from functools import lru_cache

from ..compiler.cache import CompileCache, default_limit_bytes, default_root
from ..compiler.ir import Source
from ..plan import SubmodelPlan
from .submodel import Submodel

KEPT_SHARE = 0.4
"""Share of the machine's memory that compiled submodels hold before a new one pushes out the least recently used."""


class SubmodelStore:
    """Submodels by weights, plan and policy."""

    def __init__(self, cache: CompileCache, kept_bytes: int | None = None):
        """kept_bytes: what compiled submodels may hold; KEPT_SHARE of the memory if not given."""
        import psutil

        self.cache = cache
        self.kept_bytes = int(KEPT_SHARE * psutil.virtual_memory().total) if kept_bytes is None else kept_bytes
        self._submodels: OrderedDict[tuple, Submodel] = OrderedDict()
        self._dropped: deque[str] = deque()
        self._lock = threading.Lock()

    def get(self, source: Source, plan: SubmodelPlan, policy: str, static: bool = True) -> Submodel:
        """The submodel for `source` under `plan`, made when first asked for."""
        key = (source.submodel, source.architecture, source.weights, plan, policy, static)
        with self._lock:
            while self._dropped:
                self._drop(self._dropped.popleft())
            if key not in self._submodels:
                while self._submodels and self._held_bytes() > self.kept_bytes:
                    self._submodels.popitem(last=False)
                self._submodels[key] = Submodel(source, plan, policy, self.cache, static, self.kept_bytes)
            self._submodels.move_to_end(key)
            # the model that the last one would convert from may be gone
            self._submodels[key].source = source
            self._submodels[key].start_run()
            return self._submodels[key]

    def _held_bytes(self) -> int:
        return sum(submodel.bytes for submodel in self._submodels.values())

    def release(self, weights: str) -> None:
        """Drop everything compiled from `weights`."""
        with self._lock:
            self._drop(weights)

    def release_soon(self, weights: str) -> None:
        """The same, but not before the next `get`: for finalizers, which may run while this thread holds the lock."""
        self._dropped.append(weights)

    def _drop(self, weights: str) -> None:
        for key in [k for k in self._submodels if k[2] == weights]:
            del self._submodels[key]


@lru_cache(maxsize=1)
def store() -> SubmodelStore:
    """The store of this process over the user's cache."""
    return SubmodelStore(CompileCache(default_root(), default_limit_bytes()))
