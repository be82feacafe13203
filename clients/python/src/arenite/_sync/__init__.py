# Generated from _async/__init__.py by generate.py: do not edit.
"""The sync client."""
