"""The supervisor of one run as a pure machine: ``advance(state, seen, policy, now)`` gives the next state and effects."""
