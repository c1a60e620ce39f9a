"""The kubelet's own pod list over HTTPS: what CRI never tells (hazard H13)."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from koordlet.model.pods import PodRecord
from koordlet.pods.kubeletfacts import KubeletFacts, endpoint_host
from koordlet.pods.podlist import PodListError, parse_pod_list
from koordlet.pods.source import SourceError
from koordlet.protocol.problem import Problem

EMPTY_LISTS_DOUBTED = 3
"""A kubelet that lost its state answers with no pods for a while; after this many in a row it is
believed."""

_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class KubeletEndpoint:
    """Where the kubelet is asked, whom we believe, and how we say who we are.

    ``server_name`` is the name or address that its certificate must hold. ``ca_files`` may hold
    certificate authorities or the serving certificate itself. Either a bearer token or a client
    certificate is used; the files are read again with each list, since both rotate.
    ``read_only_port`` set means: plain HTTP on that port, without any of these.
    """

    host: str = "127.0.0.1"
    port: int = 10250
    server_name: str = ""
    ca_files: tuple[str, ...] = ()
    token_file: str = ""
    client_cert_file: str = ""
    client_key_file: str = ""
    read_only_port: int | None = None
    timeout_s: float = 5.0
    size_limit_bytes: int = 64 << 20

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.read_only_port is not None:
            return f"http://{host}:{self.read_only_port}/pods"
        return f"https://{host}:{self.port}/pods"


def endpoint_of(facts: KubeletFacts, node_name: str) -> KubeletEndpoint:
    """The endpoint of a kubelet found on this host, with the credentials that lie beside it."""
    return KubeletEndpoint(
        host=endpoint_host(facts.address),
        port=facts.port,
        server_name=facts.hostname_override or node_name,
        ca_files=facts.serving_certs,
        client_cert_file=facts.client_cert,
    )


class KubeletClient:
    """Asks one kubelet; every failure is a SourceError with a remedy."""

    def __init__(self, endpoint: KubeletEndpoint) -> None:
        self._endpoint = endpoint
        self._last: dict[str, PodRecord] = {}
        self._empty_lists = 0
        self.warnings: tuple[Problem, ...] = ()

    def list_records(self) -> tuple[PodRecord, ...]:
        """All pods of this node, sorted; unchanged ones are the same objects.

        An empty list after one with running pods is doubted and raises SourceError, until
        EMPTY_LISTS_DOUBTED of them came in a row.
        """
        try:
            parsed = parse_pod_list(self._get())
        except PodListError as error:
            raise self._failure("kubelet-answer", str(error), remedy=_NO_KUBELET) from error
        self._doubt_if_empty(parsed.records)
        self.warnings = parsed.problems
        before = self._last
        self._last = {record.uid: record for record in parsed.records}
        for uid, record in before.items():
            if self._last.get(uid) == record:
                self._last[uid] = record
        return tuple(self._last.values())

    def _doubt_if_empty(self, records: tuple[PodRecord, ...]) -> None:
        if records or not any(record.running for record in self._last.values()):
            self._empty_lists = 0
            return
        self._empty_lists += 1
        if self._empty_lists <= EMPTY_LISTS_DOUBTED:
            raise self._failure(
                "kubelet-empty-list",
                f"no pods at all, after {len(self._last)} before: ignored",
                limit=f"believed after {EMPTY_LISTS_DOUBTED} such answers in a row",
                remedy="look at the kubelet's log if pods run on this node",
            )

    # -- HTTP ----------------------------------------------------------------------------------

    def _get(self) -> bytes:
        endpoint = self._endpoint
        headers = {"Accept": "application/json", **self._authorization()}
        connection = self._connection()
        deadline_s = time.monotonic() + endpoint.timeout_s
        try:
            connection.request("GET", "/pods", headers=headers)
            with connection.getresponse() as response:
                if response.status != http.client.OK:
                    raise self._refusal(response.status, response.reason)
                return self._read(response, deadline_s)
        except ssl.SSLCertVerificationError as error:
            raise self._failure(
                "kubelet-tls",
                f"its certificate is not accepted: {error.verify_message}",
                limit=f"a certificate for {self._server_name()!r}"
                f" by {', '.join(endpoint.ca_files)}",
                remedy="set the kubelet's CA file and the name that its certificate holds",
            ) from error
        except ssl.SSLError as error:
            raise self._failure(
                "kubelet-tls", f"TLS failed: {error}", remedy="check port and client certificate"
            ) from error
        except TimeoutError as error:
            raise self._too_slow() from error
        except OSError as error:
            raise self._failure(
                "kubelet-unreachable",
                str(error.strerror or error),
                remedy="start the kubelet, or correct its address and port",
            ) from error
        except http.client.HTTPException as error:
            raise self._failure("kubelet-answer", repr(error), remedy=_NO_KUBELET) from error
        finally:
            connection.close()

    def _read(self, response: http.client.HTTPResponse, deadline_s: float) -> bytes:
        """The whole body, within the time and size limits."""
        parts: list[bytes] = []
        size = 0
        while part := response.read(_CHUNK_BYTES):
            parts.append(part)
            size += len(part)
            if size > self._endpoint.size_limit_bytes:
                raise self._failure(
                    "kubelet-too-large",
                    f"the answer is longer than {self._endpoint.size_limit_bytes} bytes",
                    limit=f"{self._endpoint.size_limit_bytes} bytes",
                    remedy=_NO_KUBELET,
                )
            if time.monotonic() > deadline_s:
                raise self._too_slow()
        return b"".join(parts)

    def _connection(self) -> http.client.HTTPConnection:
        endpoint = self._endpoint
        if endpoint.read_only_port is not None:
            return http.client.HTTPConnection(
                endpoint.host, endpoint.read_only_port, timeout=endpoint.timeout_s
            )
        return _NamedConnection(
            endpoint.host,
            endpoint.port,
            server_name=self._server_name(),
            timeout_s=endpoint.timeout_s,
            context=self._tls(),
        )

    def _server_name(self) -> str:
        return self._endpoint.server_name or self._endpoint.host

    def _tls(self) -> ssl.SSLContext:
        """A context that believes ``ca_files`` only: there is no way to skip the check."""
        endpoint = self._endpoint
        if not endpoint.ca_files:
            raise self._failure(
                "kubelet-credentials",
                "no CA file: the kubelet's certificate cannot be checked",
                remedy="set the kubelet's CA file (or its serving certificate)",
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # The kubelet's serving certificate may be given itself, without its issuer.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        for path in endpoint.ca_files:
            try:
                context.load_verify_locations(cafile=path)
            except (OSError, ssl.SSLError) as error:
                raise self._unreadable(path, error) from error
        if endpoint.client_cert_file:
            try:
                context.load_cert_chain(endpoint.client_cert_file, endpoint.client_key_file or None)
            except (OSError, ssl.SSLError) as error:
                raise self._unreadable(endpoint.client_cert_file, error) from error
        return context

    def _authorization(self) -> dict[str, str]:
        path = self._endpoint.token_file
        if not path or self._endpoint.read_only_port is not None:
            return {}
        try:
            token = Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(path, error) from error
        if not token or any(character.isspace() for character in token):
            raise self._unreadable(path, ValueError("it is empty or holds blanks"))
        return {"Authorization": f"Bearer {token}"}

    # -- what went wrong -----------------------------------------------------------------------

    def _failure(self, code: str, what: str, *, limit: str = "", remedy: str) -> SourceError:
        return SourceError(Problem(code, self._endpoint.url, what, limit, remedy))

    def _too_slow(self) -> SourceError:
        return self._failure(
            "kubelet-timeout",
            "no whole answer in time",
            limit=f"{self._endpoint.timeout_s:g} s",
            remedy="look at the kubelet's log; the node may be overloaded",
        )

    def _unreadable(self, path: str, error: Exception) -> SourceError:
        return self._failure(
            "kubelet-credentials",
            f"{path} cannot be used: {error}",
            remedy="correct the path, or the file's owner and contents",
        )

    def _refusal(self, status: int, reason: str) -> SourceError:
        what = f"HTTP {status} {reason}"
        if status == http.client.UNAUTHORIZED:
            return self._failure(
                "kubelet-unauthorized",
                f"{what}: the kubelet does not know who we are",
                remedy="set a service account's token file, or a client certificate signed by"
                " the kubelet's client CA",
            )
        if status == http.client.FORBIDDEN:
            return self._failure(
                "kubelet-forbidden",
                f"{what}: the kubelet knows us, but does not let us list pods",
                remedy="bind our user to a ClusterRole with: apiGroups [''], resources"
                " [nodes/proxy], verbs [get]",
            )
        return self._failure("kubelet-answer", what, remedy=_NO_KUBELET)


_NO_KUBELET = "check that this address and port belong to the kubelet"


class _NamedConnection(http.client.HTTPSConnection):
    """HTTPS to one address under another name: the kubelet's certificate names its node."""

    def __init__(
        self, host: str, port: int, *, server_name: str, timeout_s: float, context: ssl.SSLContext
    ) -> None:
        super().__init__(host, port, timeout=timeout_s, context=context)
        self._server_name = server_name
        self._named_context = context

    def connect(self) -> None:
        sock = socket.create_connection((self.host, self.port), self.timeout)
        try:
            self.sock = self._named_context.wrap_socket(sock, server_hostname=self._server_name)
        except BaseException:
            sock.close()
            raise
