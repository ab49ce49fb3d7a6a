"""Processes of a test that may not wait for a processor while other tests run."""

import os


def may_come_first() -> bool:
    """Return whether this process may raise its own priority."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, usual - 1)
    except PermissionError:
        return False
    os.setpriority(os.PRIO_PROCESS, 0, usual)
    return True


FIRST = may_come_first()

# What stands before the command of such a process; a test that cannot have it is marked ``alone``.
COMES_FIRST = ["nice", "-n", "-10"] if FIRST else []
