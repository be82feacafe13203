"""Runs backends and API tools that are written in Python for an Arenite that speaks to them over stdin and stdout.

`python3 -m sandbox.host backend pkg.mod.Class` or `python3 -m sandbox.host tools MODULE [MODULE...]`. It needs nothing
but the standard library; docs/PLUGINS.md has the protocol.
"""
