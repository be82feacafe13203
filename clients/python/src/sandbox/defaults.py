"""A configuration to begin with. The classes are AgentFlow's names; Arenite has backends of its own for them."""

from __future__ import annotations

import copy
from typing import Any

DEFAULT_SERVER_CONFIG: dict[str, Any] = {
    "server": {
        "url": "http://127.0.0.1:18890",
        "title": "Sandbox HTTP Service",
        "description": "",
        "session_ttl": 300,
        "log_level": "INFO",
    },
    "resources": {
        "bash": {
            "enabled": True,
            "description": "A shell for each session",
            "backend_class": "sandbox.server.backends.resources.bash.BashBackend",
            "config": {},
        },
        "code": {
            "enabled": True,
            "description": "Files and programs in a workspace",
            "backend_class": "sandbox.server.backends.resources.code.CodeBackend",
            "config": {},
        },
        "browser": {
            "enabled": True,
            "description": "A browser page for each session",
            "backend_class": "sandbox.server.backends.resources.browser.BrowserBackend",
            "config": {},
        },
        "vm": {
            "enabled": True,
            "description": "A desktop for each session",
            "backend_class": "sandbox.server.backends.resources.vm.VMBackend",
            "config": {},
        },
        "rag": {
            "enabled": False,
            "description": "Search in a corpus of documents",
            "backend_class": "sandbox.server.backends.resources.rag.RAGBackend",
            "config": {
                "model_name": "${RAG_EMBEDDING_MODEL_PATH}",
                "index_path": "${RAG_INDEX_PATH}",
                "corpus_path": "${RAG_CORPUS_PATH}",
                "default_top_k": 5,
            },
        },
    },
    "apis": {
        "websearch": {
            "serper_api_key": "${SERPER_API_KEY:-}",
            "jina_api_key": "${JINA_API_KEY:-}",
        },
    },
    "warmup": {"enabled": False, "resources": []},
}


def get_default_config() -> dict[str, Any]:
    """A copy that may be changed."""
    return copy.deepcopy(DEFAULT_SERVER_CONFIG)
