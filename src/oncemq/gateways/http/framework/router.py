"""Which endpoint a path belongs to. Paths are taken apart before they are decoded, so that a topic's name may hold
anything, a slash too, when it is percent-encoded."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from oncemq.gateways.http.framework.endpoint import Endpoint, Refusing
from oncemq.protocol import errors


class _Node:
    __slots__ = ("children", "endpoints", "parameter", "parameter_name")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.parameter_name = ""
        #: By method.
        self.endpoints: dict[str, Endpoint] = {}


class Router:
    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._root = _Node()
        for endpoint in endpoints:
            self._add(endpoint)

    def _add(self, endpoint: Endpoint) -> None:
        node = self._root
        for segment in endpoint.segments:
            if segment.startswith("{"):
                name = segment.strip("{}")
                node.parameter = node.parameter or _Node()
                assert node.parameter_name in ("", name), f"{endpoint.path}: two names for one place"
                node.parameter_name = name
                node = node.parameter
            else:
                node = node.children.setdefault(segment, _Node())
        assert endpoint.method not in node.endpoints, f"{endpoint.method} {endpoint.path} is declared twice"
        node.endpoints[endpoint.method] = endpoint

    def find(self, method: str, raw_path: bytes) -> tuple[Endpoint, dict[str, str]]:
        """The endpoint, and the parameters in its path. Raises PathUnknown, MethodUnknown, Malformed."""
        node, found = self._walk(raw_path)
        endpoint = node.endpoints.get(method)
        if endpoint is None and method == "HEAD":
            endpoint = node.endpoints.get("GET")
            if endpoint is not None and endpoint.is_changing:
                endpoint = None
        if endpoint is None:
            if not node.endpoints:
                raise errors.PathUnknown(f"there is nothing at {raw_path.decode('latin-1')}")
            error = errors.MethodUnknown(f"{raw_path.decode('latin-1')} has {', '.join(sorted(node.endpoints))}")
            error.methods = tuple(sorted(node.endpoints))
            raise error
        return endpoint, found

    def refusing(self, raw_path: bytes) -> Refusing | None:
        """How the path answers refusals, whatever the method. Raises as `find` does."""
        node, _ = self._walk(raw_path)
        return next((endpoint.refusing for endpoint in node.endpoints.values()), None)

    def _walk(self, raw_path: bytes) -> tuple[_Node, dict[str, str]]:
        node = self._root
        found: dict[str, str] = {}
        for segment in raw_path.decode("latin-1").strip("/").split("/"):
            child = node.children.get(segment)
            if child is None:
                child = node.parameter
                if child is None:
                    raise errors.PathUnknown(f"there is nothing at {raw_path.decode('latin-1')}")
                found[node.parameter_name] = _decoded(segment)
            node = child
        return node, found


def _decoded(segment: str) -> str:
    if "%" not in segment:
        return segment
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise errors.Malformed(f"'{segment}' in the path is not UTF-8") from None
