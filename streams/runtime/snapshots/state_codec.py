"""Turns the state of a partition into bytes and back.

The bytes are a pickle: a state is a graph of some thousand objects that share parts, and arrays make up most
of it. A pickle may name any function to be called, so the reader takes only what is listed here: classes of
our own packages that hold state, the constructors of arrays and containers, and a few functions by name.
Nothing else is looked up or called. Parts that are code (the rules with their tests, the functions of
timelines) are saved by name.
"""

import copyreg
import importlib
import io
import pickle
from collections import ChainMap
from types import MethodType
from typing import Any

from streams.cluster.incidents.fold import INCIDENTS
from streams.cluster.timeline import SCOPE, Fold
from streams.node.rules.counter_rules import GPU_COUNTS, HOST_COUNTS, NIC_COUNTS, CountRule, StateRule
from streams.node.rules.state_rules import GPU_STATES, NIC_STATES, NODE_STATES

# Classes of these packages are taken, but for ``streams.runtime``, where most do input and output.
STATE_PACKAGES = ("alerts.", "detectors.", "slowrank.telemetry.", "streams.")

RUNTIME_CLASSES = frozenset(
    (f"streams.runtime.{module}", name)
    for module, names in {
        "kafka.dead_letters": ("Message",),
        "monitoring.node_counts": ("NodeCounts",),
        "partitions.clock_offsets": ("ClockCorrector", "_Sender"),
        "partitions.reorder_buffer": ("ReorderBuffer",),
        "partitions.saved_state": ("Parts",),
    }.items()
    for name in names
)

_SCALARS = ("bool", "bool_", "float32", "float64", "int16", "int32", "int64", "uint8")

OTHERS = frozenset(
    {
        *(("numpy", name) for name in _SCALARS),
        # The kernel of a bank, and what an open suspicion is stamped with.
        ("detectors.changepoint.kernel_numba", "advance"),
        ("detectors.changepoint.kernel_numpy", "advance"),
        ("streams.open_suspicions", "_as_it_is"),
        # How structs, arrays and containers are made.
        ("msgspec._utils", "rebuild"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy.core.numeric", "_frombuffer"),
        ("array", "_array_reconstructor"),
        ("array", "array"),
        ("builtins", "bytearray"),
        ("builtins", "complex"),
        ("builtins", "frozenset"),
        ("builtins", "range"),
        ("builtins", "set"),
        ("builtins", "slice"),
        ("collections", "Counter"),
        ("collections", "OrderedDict"),
        ("collections", "defaultdict"),
        ("collections", "deque"),
    }
)

_RULES: dict[str, tuple[CountRule | StateRule, ...]] = {
    "gpu counts": GPU_COUNTS,
    "nic counts": NIC_COUNTS,
    "host counts": HOST_COUNTS,
    "gpu states": GPU_STATES,
    "nic states": NIC_STATES,
    "node states": NODE_STATES,
}
_FOLDS: dict[str, Fold[Any, Any]] = {"scope": SCOPE, "incidents": INCIDENTS}
_NAMES = {id(rule): (table, i) for table, rules in _RULES.items() for i, rule in enumerate(rules)}


class BadState(ValueError):
    """The bytes hold no state that this process can take."""


def dumps(state: object) -> bytes:
    """Return a state as bytes. Raises ``BadState`` if it holds something that cannot be taken back."""
    written = io.BytesIO()
    pickler = pickle.Pickler(written, pickle.HIGHEST_PROTOCOL)
    by_name: dict[type, Any] = {
        CountRule: _rule_name,
        StateRule: _rule_name,
        Fold: _fold_name,
        MethodType: _method_name,
    }
    others: dict[type, Any] = copyreg.dispatch_table
    pickler.dispatch_table = ChainMap(by_name, others)
    try:
        pickler.dump(state)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise BadState(f"it cannot be saved: {error}") from error
    return written.getvalue()


def loads(data: bytes) -> Any:
    """Return the state in ``data``. Raises ``BadState`` if it names something outside of the lists here."""
    try:
        return _Reader(io.BytesIO(data)).load()
    except BadState:
        raise
    except Exception as error:
        # Which exception a broken pickle raises depends on where it is broken.
        raise BadState(f"{type(error).__name__}: {error}"[:300]) from error


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _OWN:
            return _OWN[module, name]
        if (module, name) in OTHERS or (module, name) in RUNTIME_CLASSES:
            return getattr(importlib.import_module(module), name)
        ours = module.startswith(STATE_PACKAGES) and not module.startswith("streams.runtime.")
        found = getattr(importlib.import_module(module), name, None) if ours else None
        # Defined there: a module's imports are no part of its package.
        if not isinstance(found, type) or found.__module__ != module:
            raise BadState(f"{module}.{name} is no part of a state")
        return found


def _rule_name(rule: CountRule | StateRule) -> tuple[Any, ...]:
    if id(rule) not in _NAMES:
        raise pickle.PicklingError(f"a rule outside of the tables: {rule}")
    return _rule, _NAMES[id(rule)]


def _rule(table: str, number: int) -> CountRule | StateRule:
    return _RULES[table][number]


def _fold_name(fold: Fold[Any, Any]) -> tuple[Any, ...]:
    name = next((name for name, known in _FOLDS.items() if known is fold), None)
    if name is None:
        raise pickle.PicklingError(f"a fold outside of the table: {fold}")
    return _fold, (name,)


def _fold(name: str) -> Fold[Any, Any]:
    return _FOLDS[name]


def _method_name(method: Any) -> tuple[Any, ...]:
    return _method, (method.__self__, method.__name__)


def _method(owner: object, name: str) -> Any:
    """Return a public method of one of our objects."""
    found = getattr(owner, name) if not name.startswith("_") else None
    if not isinstance(found, MethodType) or not type(owner).__module__.startswith(STATE_PACKAGES):
        raise BadState(f"{name} is no method of a state")
    return found


_OWN: dict[tuple[str, str], Any] = {(__name__, f.__name__): f for f in (_rule, _fold, _method)}
