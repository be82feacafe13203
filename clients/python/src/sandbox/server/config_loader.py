"""AgentFlow's configuration file: reading it, and making what it names."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import re
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import HTTPServiceServer

log = logging.getLogger(__name__)

_VARIABLE = re.compile(r"\$\{([^}:]+)(?::-([^}]*))?\}")


def expand_env_vars(value: Any) -> Any:
    """`${NAME}` and `${NAME:-default}` in every text of a JSON value. What is not set and has no default stays."""
    if isinstance(value, str):
        return _VARIABLE.sub(_variable, value)
    if isinstance(value, dict):
        return {key: expand_env_vars(item) for key, item in value.items()}
    if isinstance(value, list):
        return [expand_env_vars(item) for item in value]
    return value


def _variable(match: re.Match[str]) -> str:
    name, default = match.group(1), match.group(2)
    if (found := os.environ.get(name)) is not None:
        return found
    if default is None:
        log.warning("variable %s is not set", name)
        return match.group(0)
    return default


@dataclass
class ServerConfig:
    title: str = "Sandbox HTTP Service"
    description: str = ""
    session_ttl: int = 300
    cleanup_interval: int = 60
    log_level: str = "INFO"


@dataclass
class ResourceConfig:
    name: str
    enabled: bool = True
    description: str = ""
    backend_class: str | None = None
    config: dict[str, Any] = field(default_factory=dict)


@dataclass
class WarmupConfig:
    enabled: bool = False
    resources: list[str] = field(default_factory=list)


@dataclass
class SecurityConfig:
    allowed_origins: list[str] = field(default_factory=lambda: ["*"])
    rate_limit_enabled: bool = False
    requests_per_minute: int = 100
    auth_enabled: bool = False
    auth_type: str = "api_key"
    api_key: str | None = None


@dataclass
class SandboxConfig:
    server: ServerConfig = field(default_factory=ServerConfig)
    resources: dict[str, ResourceConfig] = field(default_factory=dict)
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    apis: dict[str, dict[str, Any]] = field(default_factory=dict)


class ConfigLoader:
    def __init__(self) -> None:
        self.config: SandboxConfig | None = None

    def load(self, config_path: str) -> SandboxConfig:
        path = Path(config_path)
        if not path.is_file():
            raise FileNotFoundError(f"no configuration file {config_path}")
        return self.load_from_dict(json.loads(path.read_text(encoding="utf-8")))

    def load_from_dict(self, config_dict: dict[str, Any]) -> SandboxConfig:
        given = expand_env_vars(config_dict)
        known = ServerConfig.__annotations__
        server = {key: value for key, value in (given.get("server") or {}).items() if key in known}
        security = given.get("security") or {}
        rate, auth = security.get("rate_limit") or {}, security.get("auth") or {}
        self.config = SandboxConfig(
            server=ServerConfig(**server),
            resources={
                key: ResourceConfig(
                    name=key,
                    enabled=part.get("enabled", True),
                    description=part.get("description", ""),
                    backend_class=part.get("backend_class"),
                    config=part.get("config") or {},
                )
                for key, part in (given.get("resources") or {}).items()
                if not key.startswith("_") and isinstance(part, dict)
            },
            tools=given.get("tools") or {},
            warmup=WarmupConfig(
                enabled=(given.get("warmup") or {}).get("enabled", False),
                resources=list((given.get("warmup") or {}).get("resources") or []),
            ),
            security=SecurityConfig(
                allowed_origins=security.get("allowed_origins", ["*"]),
                rate_limit_enabled=rate.get("enabled", False),
                requests_per_minute=rate.get("requests_per_minute", 100),
                auth_enabled=auth.get("enabled", False),
                auth_type=auth.get("type", "api_key"),
                api_key=auth.get("api_key"),
            ),
            apis={key: part for key, part in (given.get("apis") or {}).items() if not key.startswith("_")},
        )
        return self.config

    def _loaded(self) -> SandboxConfig:
        if self.config is None:
            raise RuntimeError("no configuration is loaded; call load() first")
        return self.config

    def get_enabled_resources(self) -> dict[str, ResourceConfig]:
        return {name: resource for name, resource in self._loaded().resources.items() if resource.enabled}

    def load_class(self, class_path: str) -> type:
        module, _, name = class_path.rpartition(".")
        if not module:
            raise ImportError(f"{class_path!r} is not of the form package.module.Class")
        found = getattr(importlib.import_module(module), name, None)
        if not isinstance(found, type):
            raise ImportError(f"module {module} has no class {name}")
        return found

    def create_server(self, host: str = "0.0.0.0", port: int = 8080) -> HTTPServiceServer:
        """Everything that is enabled, in this process. A backend that can't be loaded is logged and left out."""
        from .app import HTTPServiceServer
        from .backends.base import BackendConfig
        from .backends.tools import register_all_tools

        config = self._loaded()
        server = HTTPServiceServer(
            host,
            port,
            title=config.server.title,
            description=config.server.description,
            session_ttl=config.server.session_ttl,
            warmup_resources=self.get_warmup_resources(),
        )
        for name, resource in self.get_enabled_resources().items():
            if not resource.backend_class:
                continue
            try:
                kind = self.load_class(resource.backend_class)
                server.load_backend(
                    kind(
                        BackendConfig(
                            enabled=True, default_config=dict(resource.config), description=resource.description
                        )
                    )
                )
            except Exception:  # one that lacks its packages must not keep the others away
                log.exception("backend %s (%s) could not be loaded", name, resource.backend_class)
        if config.apis:
            register_all_tools(server, config.apis)
        return server

    def get_warmup_resources(self) -> list[str]:
        warmup, enabled = self._loaded().warmup, self.get_enabled_resources()
        return [name for name in warmup.resources if name in enabled] if warmup.enabled else []


def load_config(config_path: str) -> SandboxConfig:
    return ConfigLoader().load(config_path)


def create_server_from_config(config_path: str, host: str = "0.0.0.0", port: int = 8080) -> HTTPServiceServer:
    loader = ConfigLoader()
    loader.load(config_path)
    return loader.create_server(host, port)


def get_default_config() -> dict[str, Any]:
    from ..defaults import get_default_config as default

    return default()


def main() -> None:
    parser = argparse.ArgumentParser(description="Read a configuration file and serve what it names")
    parser.add_argument("config", help="the configuration file")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--validate", action="store_true", help="only say whether the file can be read")
    parser.add_argument("--show", action="store_true", help="print what it says, with variables filled in, and end")
    given = parser.parse_args()
    try:
        config = load_config(given.config)
    except (OSError, ValueError, TypeError) as error:
        sys.exit(f"{given.config}: {error}")
    if given.validate:
        print(f"{given.config} is valid: {len(config.resources)} resources, {len(config.apis)} API configurations")
    elif given.show:
        print(json.dumps(asdict(config), indent=2, ensure_ascii=False))
    else:
        create_server_from_config(given.config, given.host, given.port).run()


if __name__ == "__main__":
    main()
