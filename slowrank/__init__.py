"""What every slowrank process shares; importing it costs only the standard library.

Training code needs one name, ``StepTimer``; everything else is imported from its own module.
"""

__version__ = "0.1.0"
