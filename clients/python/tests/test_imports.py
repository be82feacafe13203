"""The names that existing programs import, and that the standard library is enough for what the host needs."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys

import pytest
from host_process import SOURCE

EXPORTS = {
    "sandbox": """MessageType HTTPEndpoints BaseMessage ExecuteRequest ExecuteBatchRequest SessionCreateRequest
        SessionDestroyRequest InitResourceRequest InitBatchRequest HTTPServiceServer ToolExecutor ResourceRouter
        create_server_from_config HTTPServiceClient HTTPClientConfig HTTPClientError quick_execute create_client
        Sandbox SandboxConfig SandboxError SandboxConnectionError SandboxServerStartError DEFAULT_SERVER_CONFIG
        create_sandbox get_default_config ToolResult BashResult CodeExecutionResult VMResult BrowserResult
        WebSearchResult VisitResult RAGSearchResult ResultFormatter format_tool_result""",
    "sandbox.client": "HTTPClientConfig HTTPClientError HTTPServiceClient quick_execute create_client",
    "sandbox.sandbox": """SandboxConfig SandboxError SandboxConnectionError SandboxServerStartError
        SandboxSessionError Sandbox create_sandbox get_default_config""",
    "sandbox.protocol": """MessageType BaseMessage ExecuteRequest ExecuteBatchRequest SessionCreateRequest
        SessionDestroyRequest SessionListRequest SessionRefreshRequest WorkerDisconnectRequest InitResourceRequest
        InitBatchRequest InitFromConfigRequest HTTPEndpoints""",
    "sandbox.result_formatter": """ToolResult BashResult CodeExecutionResult VMResult BrowserResult WebSearchResult
        RAGSearchResult VisitResult DocResult SQLResult ResultFormatter format_tool_result""",
    "sandbox.server": """HTTPServiceServer ResourceRouter ToolExecutor tool scan_tools Backend BackendConfig
        ConfigLoader load_config create_server_from_config SandboxConfig ServerConfig ResourceConfig
        expand_env_vars""",
    "sandbox.server.app": "HTTPServiceServer",
    "sandbox.server.config_loader": """expand_env_vars ServerConfig ResourceConfig WarmupConfig SecurityConfig
        SandboxConfig ConfigLoader load_config create_server_from_config get_default_config main""",
    "sandbox.server.core": """ResourceRouter ToolExecutor tool is_tool get_tool_metadata scan_tools TOOL_MARKER""",
    "sandbox.server.core.decorators": "ToolMetadata tool is_tool get_tool_metadata scan_tools list_tool_names",
    "sandbox.server.core.resource_router": "ResourceRouter",
    "sandbox.server.core.tool_executor": "ToolExecutor",
    "sandbox.server.backends": "Backend BackendConfig",
    "sandbox.server.backends.base": "Backend BackendConfig",
    "sandbox.server.backends.error_codes": "ErrorCode get_error_message",
    "sandbox.server.backends.response_builder": "build_success_response build_error_response ResponseTimer",
    "sandbox.server.backends.tools": """register_api_tool get_api_tool get_all_api_tools list_api_tools
        get_required_config_keys register_all_tools APIToolInfo""",
    "sandbox.server.backends.tools.base_tool": "ToolBusinessError BaseApiTool",
    "sandbox.tool_schemas": """get_tool_schemas get_all_tool_names get_tools_by_resource get_rag_tool_schemas
        get_web_tool_schemas get_vm_tool_schemas get_doc_tool_schemas get_ds_tool_schemas get_sql_tool_schemas
        get_mcp_tool_schemas""",
}

#: Parameters, in their order, of what is called from outside.
SIGNATURES = {
    "sandbox.client:HTTPServiceClient": "base_url worker_id timeout config",
    "sandbox.client:HTTPServiceClient.execute": "self action params timeout",
    "sandbox.client:HTTPServiceClient.execute_batch": "self actions parallel stop_on_error",
    "sandbox.client:HTTPServiceClient.create_session": "self resource_type session_config custom_name",
    "sandbox.client:HTTPServiceClient.init_from_config": "self config_path override_params",
    "sandbox.client:quick_execute": "action params base_url worker_id",
    "sandbox.sandbox:Sandbox": "server_url worker_id config warmup_resources kwargs",
    "sandbox.sandbox:Sandbox.create_session_sync": "self resources config",
    "sandbox.sandbox:Sandbox.execute": "self action params timeout kwargs",
    "sandbox.sandbox:Sandbox.reinitialize_sync": "self resource_type new_config",
    "sandbox.server.app:HTTPServiceServer": """host port title description version enable_cors session_ttl
        warmup_resources""",
    "sandbox.server.app:HTTPServiceServer.register_tool": "self name func resource_type",
    "sandbox.server.app:HTTPServiceServer.register_api_tool": "self name func config description hidden",
    "sandbox.server.core.tool_executor:ToolExecutor": """tools tool_name_index tool_resource_types resource_router
        warmup_callback""",
    "sandbox.server.core.resource_router:ResourceRouter.get_or_create_session": """self worker_id resource_type
        config auto_created custom_name""",
    "sandbox.server.core.decorators:tool": "name resource_type description hidden schema",
    "sandbox.server.backends.response_builder:build_error_response": """code message tool data execution_time_ms
        resource_type session_id trace_id""",
    "sandbox.server.backends.tools:register_api_tool": "name config_key description hidden",
    "sandbox.server.backends.tools.base_tool:ToolBusinessError": "message code data",
}


@pytest.mark.parametrize("module", EXPORTS)
def test_names(module: str) -> None:
    loaded = importlib.import_module(module)
    for name in EXPORTS[module].split():
        assert getattr(loaded, name) is not None, name


def test_star_imports_bring_what_is_promised() -> None:
    space: dict[str, object] = {}
    exec("from sandbox import *", space)
    assert set(EXPORTS["sandbox"].split()) <= space.keys()
    exec("from sandbox.server import *", space)
    assert set(EXPORTS["sandbox.server"].split()) <= space.keys()


@pytest.mark.parametrize("place", SIGNATURES)
def test_signatures(place: str) -> None:
    module, _, path = place.partition(":")
    found: object = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    own = list(inspect.signature(found).parameters)  # type: ignore[arg-type]
    wanted = SIGNATURES[place].split()
    assert [name for name in own if name in wanted] == wanted, own
    # What is ours comes by name only, so that it is never in the way.
    extra = [p for name, p in inspect.signature(found).parameters.items() if name not in wanted]  # type: ignore[arg-type]
    assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in extra)


def test_unknown_names_are_attribute_errors() -> None:
    import sandbox

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sandbox.nothing  # noqa: B018
    assert "Sandbox" in dir(sandbox)


def isolated(code: str) -> str:
    """Runs it without site-packages, without the user's and the environment's paths."""
    program = f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n{code}"
    done = subprocess.run([sys.executable, "-S", "-I", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_standard_library_is_enough_for_backends_and_the_host() -> None:
    modules = [
        "sandbox" + ".".join(["", *path.relative_to(SOURCE / "sandbox").with_suffix("").parts])
        for folder in ("server", "host", "tool_schemas")
        for path in sorted((SOURCE / "sandbox" / folder).rglob("*.py"))
    ]
    modules = [module.removesuffix(".__init__") for module in modules]
    assert "sandbox.host.service" in modules
    isolated("import importlib\n" + "\n".join(f"importlib.import_module({name!r})" for name in ["sandbox", *modules]))


def test_nothing_is_imported_before_it_is_used() -> None:
    loaded = isolated("import sandbox, sandbox.server, sandbox.client, sandbox.sandbox; print(sorted(sys.modules))")
    names = ast.literal_eval(loaded)
    assert not {"httpx", "pydantic", "sandbox.server.app", "sandbox.protocol"} & set(names)


def test_what_is_missing_is_named() -> None:
    code = "import sandbox\ntry: sandbox.HTTPServiceClient()\nexcept ModuleNotFoundError as e: print(e.name)"
    assert isolated(code).strip() == "httpx"
    code = "import sandbox\ntry: sandbox.ExecuteRequest\nexcept ModuleNotFoundError as e: print(e.name)"
    assert isolated(code).strip() == "pydantic"
