"""How many nodes one installation carries, with everything of it on this machine."""
