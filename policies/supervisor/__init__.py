"""The supervisor of one run as a pure machine: ``advance(state, seen, policy, now)`` gives state and effects."""
