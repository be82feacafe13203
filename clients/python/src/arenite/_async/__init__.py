"""The async client. `_sync` is generated from it by `generate.py`."""
