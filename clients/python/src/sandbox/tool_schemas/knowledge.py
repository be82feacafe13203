"""The web, documents, data files, and what is searched in."""

from __future__ import annotations

from .entry import entry, needs, takes

WEB = [
    entry(
        "web-search",
        "Search the web. Several questions may be asked at once",
        needs("query", "array", "What to search for, one entry for each question", "string"),
    ),
    entry(
        "web-visit",
        "Open pages and answer what they say about a goal",
        needs("urls", "array", "Addresses of the pages", "string"),
        needs("goal", "string", "What is wanted from the pages"),
    ),
    entry(
        "web-image_search",
        "Search for pictures by words",
        needs("query", "array", "What the pictures show, one entry for each question", "string"),
    ),
    entry(
        "web-reverse_image_search",
        "Search for pages that show a picture, or one like it",
        needs("image_url", "string", "Address of the picture"),
    ),
]

DOC = [
    entry(
        "doc-search",
        "Search in the document for words",
        needs("key_words", "array", "Words to look for", "string"),
        takes("max_search_results", "integer", "Hits to answer at most. Default: 10"),
    ),
    entry(
        "doc-read",
        "Read sections of the document with a goal in mind",
        needs("section_ids", "array", "Numbers of the sections, as the search answers them", "string"),
        needs("goal", "string", "What is wanted from the sections"),
        takes("max_image_num", "integer", "Pictures to look at, at most. Default: 10"),
        takes("max_text_token", "integer", "Tokens of text to read, at most. Default: 20000"),
    ),
]

DS = [
    entry("ds_inspect_data", "List the data files, with their columns and first rows"),
    entry(
        "ds_read_csv",
        "Read a CSV file",
        needs("csv_file", "string", "Name of the file"),
        takes("max_rows", "integer", "Rows to read at most. Default: 50"),
    ),
    entry(
        "ds_run_python",
        "Run Python over the data files, with pandas; answers what it prints, and its charts",
        needs("code", "string", "The program's text"),
        takes("return_vars", "array", "Names of variables whose values are wanted", "string"),
    ),
]

RAG = [
    entry(
        "rag-search",
        "Search in the corpus for passages that fit a question",
        needs("query", "string", "The question"),
        takes("top_k", "integer", "Passages to answer. Default: 5"),
    ),
]

SQL = [
    entry("text2sql-list_databases", "List the databases"),
    entry(
        "text2sql-get_schema",
        "Read the tables and columns of a database",
        needs("db_id", "string", "Name of the database"),
        takes("table_names", "array", "Only these tables", "string"),
    ),
    entry(
        "text2sql-execute",
        "Run a query that reads. At most 100 rows are answered",
        needs("db_id", "string", "Name of the database"),
        needs("query", "string", "A statement that begins with SELECT, WITH or PRAGMA"),
    ),
]
