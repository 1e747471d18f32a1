"""HTML from Python: elements that escape their content, and the subset of Markdown that descriptions use."""

from __future__ import annotations

import html
import re

_VOID = {"input", "link", "meta"}


class Html(str):
    """Text that is already HTML."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str | bool) -> Html:
    """Return an HTML element. Attribute names that are Python keywords end in an underscore; `data_path` becomes
    `data-path`. An attribute with True has no value; one with False is omitted."""
    inside = "".join(_attribute(key, value) for key, value in attributes.items() if value is not False)
    opened = f"<{name}{inside}>"
    return Html(opened if name in _VOID else f"{opened}{together(*children)}</{name}>")


def together(*children: str) -> Html:
    """Return the children as one text; those that are not HTML are escaped."""
    return Html("".join(child if isinstance(child, Html) else html.escape(child, quote=False) for child in children))


def _attribute(key: str, value: str | bool) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'


def markdown(text: str) -> Html:
    """Convert headings, paragraphs, lists and fenced code, with `code`, *emphasis*, **strong** and links inside."""
    return together(*(_block(block) for block in re.split(r"\n{2,}", text.strip()) if block))


def _block(block: str) -> Html:
    if match := re.fullmatch(r"(#{1,4}) (.*)", block):
        return element(f"h{len(match[1])}", inline(match[2]))
    if block.startswith("```"):
        return element("pre", element("code", "\n".join(block.splitlines()[1:-1])))
    before, *items = re.split(r"(?:^|\n)- ", block)
    listed = element("ul", *(element("li", inline(item)) for item in items)) if items else Html()
    return together(element("p", inline(before)) if before else Html(), listed)


_INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*|\[([^\]]+)\]\(((?:https?:|/|#)[^)\s]*)\)")


def inline(text: str) -> Html:
    """Convert `code`, *emphasis*, **strong** and links."""
    parts: list[str] = []
    end = 0
    for match in _INLINE.finditer(text):
        parts += [text[end : match.start()], _span(match)]
        end = match.end()
    return together(*parts, text[end:])


def _span(match: re.Match[str]) -> Html:
    code, strong, emphasis, label, target = match.groups()
    if code:
        return element("code", code)
    if strong:
        return element("strong", strong)
    return element("em", emphasis) if emphasis else element("a", label, href=target)
