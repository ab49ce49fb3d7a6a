"""Shared by all slowrank processes; importing it loads only the standard library.

Training code needs one name, ``StepTimer``; all others are imported from their own modules.
"""

# As type checkers know it: importing ``typing`` would be nearly all that this import costs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from slowrank.hook import StepTimer

__version__ = "0.1.0"
__all__ = ["StepTimer", "__version__"]


# Lazily (PEP 562): every process imports this package, and only training needs the hook.
def __getattr__(name: str) -> object:
    if name == "StepTimer":
        from slowrank.hook import StepTimer

        return StepTimer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
