"""What backends are written with."""

from pkgutil import extend_path

# An AgentFlow checkout on the plugin path adds the packages that are not here, such as `resources`.
__path__ = extend_path(__path__, __name__)

from .base import Backend, BackendConfig

__all__ = ["Backend", "BackendConfig"]
