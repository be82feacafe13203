"""OSWorld's metrics: what became of a task, judged by files and texts that a machine gave.

Written for Arenite; their names and what they mean are OSWorld's.
"""
