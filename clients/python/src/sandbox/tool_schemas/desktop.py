"""The desktop of a virtual machine, and the browser page."""

from __future__ import annotations

from .entry import entry, needs, takes

_X = needs("x", "integer", "Pixels from the left edge of the screen")
_Y = needs("y", "integer", "Pixels from the top edge of the screen")
_BUTTON = takes("button", "string", "Mouse button: left, right or middle. Default: left")

VM = [
    entry("vm-screenshot", "Take a picture of the screen, with the accessibility tree of what is on it"),
    entry("vm-click", "Click at a point of the screen", _X, _Y, _BUTTON),
    entry("vm-double_click", "Click twice at a point of the screen", _X, _Y),
    entry(
        "vm-right_click",
        "Click with the right button, at a point or where the pointer is",
        takes("x", "integer", "Pixels from the left edge; given together with y or not at all"),
        takes("y", "integer", "Pixels from the top edge; given together with x or not at all"),
    ),
    entry(
        "vm-type",
        "Type text where the keyboard's focus is",
        needs("text", "string", "Text to type"),
        takes("interval", "number", "Seconds between two keys. Default: 0"),
    ),
    entry("vm-key", "Press a key and let it go", needs("key", "string", "Name of the key, such as enter, tab or f5")),
    entry("vm-key_down", "Press a key and hold it", needs("key", "string", "Name of the key")),
    entry("vm-key_up", "Let go of a key that is held", needs("key", "string", "Name of the key")),
    entry(
        "vm-hotkey",
        "Press several keys together",
        needs("keys", "array", "Names of the keys in the order in which they go down, such as ctrl and c", "string"),
    ),
    entry(
        "vm-scroll",
        "Turn the mouse wheel at a point of the screen",
        _X,
        _Y,
        needs("clicks", "integer", "Steps of the wheel; above zero is up, below zero is down"),
    ),
    entry(
        "vm-drag",
        "Drag with the left button from one point to another",
        needs("start_x", "integer", "Where it begins, from the left"),
        needs("start_y", "integer", "Where it begins, from the top"),
        needs("end_x", "integer", "Where it ends, from the left"),
        needs("end_y", "integer", "Where it ends, from the top"),
    ),
    entry("vm-move", "Move the pointer without a click", _X, _Y),
    entry("vm-mouse_down", "Press a mouse button and hold it", _BUTTON),
    entry("vm-mouse_up", "Let go of a mouse button that is held", _BUTTON),
]

_SELECTOR = needs("selector", "string", "CSS selector of the element")

BROWSER = [
    entry("browser-goto", "Open a page", needs("url", "string", "Address of the page")),
    entry("browser-screenshot", "Take a picture of the page"),
    entry("browser-click", "Click on an element of the page", _SELECTOR),
    entry("browser-type", "Type text into an element, key by key", _SELECTOR, needs("text", "string", "Text to type")),
    entry("browser-fill", "Set the value of an input field", _SELECTOR, needs("text", "string", "The new value")),
    entry("browser-press", "Press a key", needs("key", "string", "Name of the key, such as Enter")),
    entry(
        "browser-select_option",
        "Choose from a list of options",
        _SELECTOR,
        needs("value", "string", "Value of the option"),
    ),
    entry("browser-get_content", "Read the page's HTML"),
    entry("browser-get_text", "Read the text of an element", _SELECTOR),
    entry("browser-evaluate", "Run JavaScript in the page", needs("script", "string", "An expression or a function")),
    entry("browser-wait_for_selector", "Wait until an element is there", _SELECTOR),
    entry(
        "browser-scroll",
        "Scroll the page",
        takes("x", "integer", "Pixels to the right. Default: 0"),
        takes("y", "integer", "Pixels down. Default: 0"),
    ),
]
