import sqlite3
import sys

with sqlite3.connect(sys.argv[1]) as database:
    database.execute("CREATE TABLE words (word TEXT, value REAL)")
    database.executemany("INSERT INTO words VALUES (?, ?)", [(f"word{n}", n / 3) for n in range(500)])
