"""Why a site does not answer: a sentence for the server, which nothing of the app's can enter, and one for the site."""

from __future__ import annotations

from fedseal.core.errors import FedsealError


class RefusedError(FedsealError):
    """The site's policy refuses.

    Args:
        public: what the server is told; made of the policy's and the server's own words only, as an app could hide
            anything in a text of its choice.
        detail: what the site's log says on top.
    """

    def __init__(self, public: str, *, detail: str = "") -> None:
        super().__init__(public, hint=detail or None)
        self.public = public
        self.detail = detail
