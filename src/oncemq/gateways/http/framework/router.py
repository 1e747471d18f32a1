"""Finds the endpoint of a path. Paths are split before they are decoded, so that a percent-encoded topic name may
contain any character, even a slash."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from oncemq.gateways.http.framework.endpoint import Endpoint, ErrorFormat
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
                assert node.parameter_name in ("", name), f"{endpoint.path}: two names for one parameter"
                node.parameter_name = name
                node = node.parameter
            else:
                node = node.children.setdefault(segment, _Node())
        assert endpoint.method not in node.endpoints, f"{endpoint.method} {endpoint.path} is declared twice"
        node.endpoints[endpoint.method] = endpoint

    def find(self, method: str, raw_path: bytes) -> tuple[Endpoint, dict[str, str]]:
        """Return the endpoint and the parameters in its path. Raises PathUnknown, MethodUnknown, Malformed."""
        node, found = self._find_node(raw_path)
        endpoint = node.endpoints.get(method)
        if endpoint is None and method == "HEAD":
            endpoint = node.endpoints.get("GET")
            if endpoint is not None and endpoint.is_changing:
                endpoint = None
        if endpoint is None:
            if not node.endpoints:
                raise _path_unknown(raw_path)
            methods = ", ".join(sorted(node.endpoints))
            error = errors.MethodUnknown(f"{raw_path.decode('latin-1')} has no {method}; it has {methods}")
            error.methods = tuple(sorted(node.endpoints))
            raise error
        return endpoint, found

    def error_format(self, raw_path: bytes) -> ErrorFormat | None:
        """Return the form of the path's error responses, for any method. Raises as `find` does."""
        node, _ = self._find_node(raw_path)
        return next((endpoint.error_format for endpoint in node.endpoints.values()), None)

    def _find_node(self, raw_path: bytes) -> tuple[_Node, dict[str, str]]:
        node = self._root
        found: dict[str, str] = {}
        for segment in raw_path.decode("latin-1").strip("/").split("/"):
            child = node.children.get(segment)
            if child is None:
                child = node.parameter
                if child is None:
                    raise _path_unknown(raw_path)
                found[node.parameter_name] = _decoded(segment)
            node = child
        return node, found


def _path_unknown(raw_path: bytes) -> errors.PathUnknown:
    return errors.PathUnknown(f"there is no endpoint at {raw_path.decode('latin-1')}")


def _decoded(segment: str) -> str:
    if "%" not in segment:
        return segment
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise errors.Malformed(f"'{segment}' in the path is not UTF-8") from None
