"""What is changed in pyinfra's own ways, without a run."""

from __future__ import annotations

import pytest
from pyinfra.api.exceptions import ConnectError, PyinfraError

from tasks import transport


class Connector:
    """One whose private key is not there."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def connect(self) -> str:
        if self.error:
            raise self.error
        return "connected"


@pytest.mark.parametrize("error", [PyinfraError("No such private key file: /nope"), ConnectError("timed out")])
def test_what_keeps_a_host_from_being_reached_is_its_own_error(error: Exception) -> None:
    connector = Connector(error)
    transport.fail_alone(connector)
    with pytest.raises(ConnectError, match=str(error)):
        connector.connect()


def test_a_host_that_is_reached_is_reached() -> None:
    connector = Connector(None)
    transport.fail_alone(connector)
    assert connector.connect() == "connected"


def test_a_missing_key_is_told_as_a_login_that_is_refused() -> None:
    found = transport.why_not("a", "No such private key file: /nope")
    assert (found.rule, found.where) == ("HOST-LOGIN", "a")
    assert found.what == "there is no such key here, or it cannot be used"
