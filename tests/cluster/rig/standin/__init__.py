"""A stand-in for Volcano, for tests on machines that do not have its programs.

It plays, through the same API, what Rerail's suites need of Volcano, in the way that the contract suite
(``test_volcano_contract*.py``) saw the real one do it; what it does not play it refuses by name (``refusals``).
"""
