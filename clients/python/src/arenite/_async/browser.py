"""The browser of a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..models import BrowserInfoResult

if TYPE_CHECKING:
    from .sandbox import AsyncSandbox


class AsyncBrowser:
    """A Chromium on the sandbox's screen. The image must have one."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def info(self) -> BrowserInfoResult:
        """Starts the browser, and describes it."""
        return BrowserInfoResult.model_validate(await self._sandbox.request("GET", "/v1/browser/info"))

    async def cdp_url(self) -> str:
        """The address for clients of the DevTools protocol, such as Playwright and Puppeteer."""
        return (await self.info()).cdp_url

    async def screenshot(self) -> bytes:
        """A picture of the whole screen, as PNG."""
        found: bytes = await self._sandbox.request("GET", "/v1/browser/screenshot")
        return found

    async def navigate(self, url: str, *, timeout: float = 30) -> dict[str, Any]:
        """Opens a page, and waits until it is loaded."""
        body = {"url": url, "timeout": timeout}
        found: dict[str, Any] = await self._sandbox._work("/v1/browser/page/navigate", body, timeout)
        return found
