"""Whether the Hugging Face hub can be asked, found out at once and not after many retries."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request

from adadepth.errors import DataError

_PATIENCE_S = 5.0


def first_line(error: object) -> str:
    """What a library says about a failure, cut to a line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def require_hub(what: str, alternative: str, kind: type[DataError] = DataError) -> None:
    """Fail at once when the hub must be asked and cannot be reached; a single attempt honouring proxy settings.

    With ``HF_HUB_OFFLINE=1`` nothing is asked: the libraries then look in their own cache only.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=_PATIENCE_S).close()
    except urllib.error.HTTPError:
        return  # an answer, whatever it says
    except (OSError, http.client.HTTPException) as error:
        reason = first_line(getattr(error, "reason", error))
        raise kind(
            f"{what}: the Hugging Face hub cannot be reached ({reason}); {alternative}, "
            "or set HF_HUB_OFFLINE=1 to use what was downloaded before"
        ) from error
