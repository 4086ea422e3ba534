"""The one place that imports ``kubernetes``: configuration, requests on plain dicts, list and watch, typed errors.

Import from the modules: ``resources`` is light, ``api`` and ``watch`` bring the official client with them.
"""
